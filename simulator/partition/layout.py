"""Which dimension of a tensor lies on which mesh axis.

Per mesh axis a tensor is placed in one of three ways:

    Shard(dim)    every rank of the axis holds its part of this dimension
    REPLICATE     every rank holds all
    PARTIAL       every rank holds a term of a sum

A layout is a list of rules, first come first served: a rule lays some dimensions on an axis unless a rule before it has taken that axis
for the tensor at hand.  So "heads on `tensor`" before "sequence on `tensor`" divides queries by heads and the residual stream, which has
none, by its tokens: that is sequence parallelism.  (Such lists are the logical axis rules of T5X and MaxText.)

A dimension may lie on several axes: the first cuts it into blocks, the next cuts these.  So a rule names one axis or an ordered tuple of
them, and takes those that are free.  Rules may be for some kinds of tensors only: a weight's two dimensions may lie on two axes where of
activations tokens take one and the width the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from simulator.errors import LayoutError
from simulator.workload.graph import Dim, Tensor

__all__ = [
    "ACTIVATIONS",
    "MATRICES",
    "PARTIAL",
    "REPLICATE",
    "VECTORS",
    "Layout",
    "Mesh",
    "Placement",
    "Rule",
    "Shard",
    "kind_of",
    "rule",
]

Mesh = tuple[tuple[str, int], ...]
"""Axes and how many ranks each has."""

ACTIVATIONS, MATRICES, VECTORS = KINDS = ("activations", "matrices", "vectors")
"""Kinds of tensors that rules may tell apart: what is computed, the model's matrices, and its biases, scales and small tables."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Every rank of an axis holds its part of this dimension."""

    dim: str


@dataclass(frozen=True, slots=True)
class Whole:
    """Every rank of an axis holds as many elements as there are: all of the tensor, or a term of a sum."""

    is_sum: bool


REPLICATE, PARTIAL = Whole(False), Whole(True)
Placement = Shard | Whole


Takes = Literal["", "first", "last"]


@dataclass(frozen=True, slots=True)
class Rule:
    """These dimensions lie on these mesh axes; of one tensor at most one of them.

    Args:
        dims: names of dimensions.
        axes: in the order in which they cut it.
        kinds: of tensors that it is for.
        takes: of several, which one takes the axes, "first" or "last" (a weight's depth, or its columns); "" refuses them.
    """

    dims: frozenset[str]
    axes: tuple[str, ...]
    kinds: tuple[str, ...] = KINDS
    takes: Takes = ""


def rule(axes: str | tuple[str, ...], *dims: str, kinds: tuple[str, ...] = KINDS, takes: Takes = "") -> Rule:
    """A rule, as strategies write it."""
    return Rule(frozenset(dims), (axes,) if isinstance(axes, str) else axes, kinds, takes)


def kind_of(tensor: Tensor) -> str:
    """Return which kind of tensors one belongs to, by its role.

    >>> kind_of(Tensor("x", (), 2.0)), kind_of(Tensor("w", (), 2.0, "weight")), kind_of(Tensor("b", (), 2.0, "bias"))
    ('activations', 'matrices', 'vectors')
    """
    return {"weight": MATRICES, "bias": VECTORS, "vector": VECTORS}.get(tensor.role, ACTIVATIONS)


@dataclass(frozen=True, slots=True)
class Layout:
    """How tensors of named dimensions lie on a mesh.

    Args:
        name: of the strategy it comes from, for messages.
        mesh: (axis, ranks) of each axis.
        rules: in the order in which they take an axis.
        excess: how many times its even share the fullest rank has of a dimension (rows of experts).
        output_stationary: whether products run where their results lie and operands come there; otherwise they run as the rules divide
            all of their dimensions, and where a result does not lie so, it moves.
        tensor: axes of the ranks that split layers.
        panels: whether a product that gathers both operands does so in as many panels as an axis has ranks, each broadcast by its owner
            and multiplied before the next.
        pads: dimensions whose parts are padded where ranks do not divide them: the first ranks have one more; others are refused.
        keeps_gathered: whether what was gathered for a product stands until its gradients; otherwise it is gathered again.

    Raises:
        LayoutError: a rule names an axis twice.
    """

    name: str
    mesh: Mesh
    rules: tuple[Rule, ...]
    excess: tuple[tuple[str, float], ...] = ()
    output_stationary: bool = False
    tensor: tuple[str, ...] = ("tensor",)
    panels: bool = False
    keeps_gathered: bool = False
    pads: frozenset[str] = frozenset()
    known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was found before, by what it depends on beside the layout."""

    def __post_init__(self) -> None:
        self.known.update(self.mesh)
        for rule in self.rules:
            twice = next((axis for axis in rule.axes if rule.axes.count(axis) > 1), "")
            if twice:
                raise LayoutError(
                    f"layout {self.name!r} lays {' and '.join(sorted(rule.dims))} on mesh axis {twice!r} twice; a dimension is cut by an "
                    f"axis once. Nearest: {', '.join(dict.fromkeys(rule.axes))}."
                )

    def __hash__(self) -> int:
        return hash((self.name, self.mesh, len(self.rules), self.excess))

    def without(self, *axes: str) -> Layout:
        """Return the layout of tensors that do not lie on these axes, of one rank each then.

        >>> Layout("example", (("tensor", 4), ("expert", 8)), (rule("expert", "experts"),)).without("expert").mesh
        (('tensor', 4), ('expert', 1))
        """
        return replace(self, mesh=tuple([(axis, 1 if axis in axes else n) for axis, n in self.mesh]), known={})

    def ranks(self, axis: str) -> int:
        """How many ranks an axis has; 1 where the mesh has none of this name."""
        found: int = self.known.get(axis, 1)
        return found

    @property
    def tensor_ranks(self) -> int:
        """How many ranks split layers."""
        return math.prod(self.ranks(axis) for axis in self.tensor)

    def along(self, dims: tuple[Dim, ...], kind: str = ACTIVATIONS) -> Mapping[str, Dim]:
        """Return axis -> the dimension that lies on it, of a tensor or of an operation with these dimensions.

        Axes of one rank are in it too: what is divided by one stays whole.  A dimension that serves another one (key/value heads serve
        heads) lies where that one does.  Of several axes of one dimension the first cuts it first.

        Args:
            kind: of the tensor, as of `kind_of`.

        Raises:
            LayoutError: two of them claim one axis.

        >>> layout = Layout("example", (("tensor", 4),), (rule("tensor", "heads"), rule("tensor", "sequence")))
        >>> sequence, heads, hidden = Dim("sequence", 8), Dim("heads", 4), Dim("hidden", 64)
        >>> {axis: dim.name for axis, dim in layout.along((sequence, heads)).items()}
        {'tensor': 'heads'}
        >>> {axis: dim.name for axis, dim in layout.along((sequence, hidden)).items()}
        {'tensor': 'sequence'}
        """
        key = "along", kind, dims
        if key not in self.known:
            self.known[key] = self._along(dims, kind)
        found: Mapping[str, Dim] = self.known[key]
        return found

    def _along(self, dims: tuple[Dim, ...], kind: str) -> Mapping[str, Dim]:
        found: dict[str, Dim] = {}
        for rule in self.rules:
            if kind not in rule.kinds:
                continue
            claims = {d.serves or d.name: d for d in dims if (d.serves or d.name) in rule.dims}
            if len(claims) > 1 and not rule.takes:
                axis = next((axis for axis in rule.axes if self.ranks(axis) > 1), "")
                if axis:
                    raise LayoutError(
                        f"layout {self.name!r} lays {' and '.join(sorted(claims))} of ({', '.join(d.name for d in dims)}) both on mesh "
                        f"axis {axis!r}; an axis divides one dimension of a tensor. Way out: a layout that leaves one of them whole."
                    )
            for axis in rule.axes if claims else ():
                found.setdefault(axis, list(claims.values())[-1 if rule.takes == "last" else 0])
        return found

    def alike(self, one: Dim | None, other: Dim) -> bool:
        """Whether the same rule lays two dimensions on an axis."""
        if one is None:
            return False
        names = {one.serves or one.name, other.serves or other.name}
        return any(names <= rule.dims for rule in self.rules)

    def axes(self, dims: tuple[Dim, ...], kind: str = ACTIVATIONS) -> dict[str, Dim]:
        """Return what `along` does, of axes of several ranks."""
        return {axis: dim for axis, dim in self.along(dims, kind).items() if self.ranks(axis) > 1}

    def placement(self, dims: tuple[Dim, ...], kind: str = ACTIVATIONS) -> dict[str, Placement]:
        """Return axis -> placement of a tensor of these dimensions, of axes of several ranks: first those that cut it, in their order."""
        cut: dict[str, Placement] = {axis: Shard(dim.name) for axis, dim in self.axes(dims, kind).items()}
        return cut | {axis: REPLICATE for axis, n in self.mesh if n > 1 and axis not in cut}

    def placed(self, tensor: Tensor) -> dict[str, Placement]:
        """Return the placement of a tensor, whatever its kind."""
        return self.placement(tensor.dims, kind_of(tensor))

    def parts(self, dim: Dim, axis: str) -> int:
        """How many different parts of a dimension the ranks of an axis hold.

        As many as it has ranks; of a dimension that serves another one (key/value heads) and has fewer elements, every rank holds the one
        that serves its part, and so several ranks hold the same.

        >>> layout = Layout("example", (("tensor", 8),), (rule("tensor", "heads"),))
        >>> layout.parts(Dim("heads", 32), "tensor"), layout.parts(Dim("kv_heads", 2, serves="heads"), "tensor")
        (8, 2)
        """
        ranks = self.ranks(axis)
        return dim.size if dim.serves and dim.size < ranks and ranks % dim.size == 0 else ranks

    def _divisor(self, dim: Dim, axis: str) -> float:
        """How many times as much as a rank of an axis holds there is of a dimension."""
        parts = [self.parts(one, axis) for one in dim.joins or (dim,)]
        if dim.name in self.pads and dim.size % parts[0]:
            return dim.size / -(-dim.size // parts[0])
        if all(each == parts[0] for each in parts):
            return parts[0]
        return dim.size / sum(one.size / each for one, each in zip(dim.joins, parts, strict=True))

    def shared(self, dims: tuple[Dim, ...], axis: str, kind: str = ACTIVATIONS) -> int:
        """How many ranks of an axis hold the same part of a tensor that lies on it; 1 where each has its own."""
        dim = self.along(dims, kind).get(axis)
        return 1 if dim is None else self.ranks(axis) // self.parts(dim, axis)

    def ways(self, dims: tuple[Dim, ...], kind: str = ACTIVATIONS) -> float:
        """How many times as much as the fullest rank there is of a tensor of these dimensions.

        >>> layout = Layout("example", (("tensor", 4),), (rule("tensor", "ffn"),), (("rows", 2.0),))
        >>> layout.ways((Dim("tokens", 8), Dim("ffn", 16))), layout.ways((Dim("rows", 8),))
        (4, 0.5)
        >>> layout = Layout("example", (("tensor", 3),), (rule("tensor", "sequence"),), pads=frozenset(("sequence",)))
        >>> 8192 / layout.ways((Dim("sequence", 8192), Dim("hidden", 16)))
        2731.0
        """
        key = "ways", kind, dims
        if key not in self.known:
            ways: float = math.prod(self._divisor(d, axis) for axis, d in self.along(dims, kind).items())
            for name, excess in self.excess:
                if any(d.name == name for d in dims):
                    ways /= excess
            self.known[key] = ways
        found: float = self.known[key]
        return found

    def local(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return the dimensions of what one rank holds, evenly shared out.

        Raises:
            LayoutError: a size does not divide.
        """
        return self.local_tensor(Tensor("tensor", dims, 0.0)).dims

    def local_tensor(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor that one rank holds; errors as of `local`.

        >>> layout = Layout("example", (("rows", 2), ("depth", 2)), (rule(("depth", "rows"), "batch"),))
        >>> [d.size for d in layout.local_tensor(Tensor("x", (Dim("batch", 16), Dim("hidden", 8)), 2.0)).dims]
        [4, 8]
        """
        along = self.along(tensor.dims, kind_of(tensor)).items()
        return tensor.view(
            *(self._part(tensor, d, [axis for axis, on in along if on.name == d.name]) for d in tensor.dims)
        )

    def _part(self, tensor: Tensor, dim: Dim, axes: list[str]) -> Dim:
        if not axes:
            return dim
        parts = math.prod(self.parts(dim, axis) for axis in axes)
        if dim.size % parts and dim.name not in self.pads:
            near = next(n for n in range(min(parts, dim.size), 0, -1) if dim.size % n == 0)
            which = f"axis {axes[0]!r}" if len(axes) == 1 else f"axes {' and '.join(map(repr, axes))}"
            raise LayoutError(
                f"layout {self.name!r} lays {dim.name} of {tensor.name!r} on the {parts} ranks of mesh {which}, but {dim.size} / "
                f"{parts} is no whole number. Nearest: {near} ranks."
            )
        return Dim(dim.name, -(-dim.size // parts), dim.serves)

    def check(self, tensors: Iterable[Tensor]) -> None:
        """Refuse tensors that cannot lie so.

        Raises:
            LayoutError: a dimension does not divide, or two claim one axis; the tensor, the dimension and the axis are named.
        """
        for tensor in tensors:
            self.local_tensor(tensor)
