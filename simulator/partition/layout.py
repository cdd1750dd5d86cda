"""Which dimension of a tensor lies on which mesh axis.

Per mesh axis a tensor is placed in one of three ways:

    Shard(dim)    every rank of the axis holds its part of this dimension
    REPLICATE     every rank holds all
    PARTIAL       every rank holds a term of a sum

A layout is a list of rules, first come first served: a rule lays some dimensions on an axis unless a rule before it has taken that axis
for the tensor at hand.  So "heads on `tensor`" before "sequence on `tensor`" divides queries by heads and the residual stream, which has
none, by its tokens: that is sequence parallelism.  (Such lists are the logical axis rules of T5X and MaxText.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import LayoutError
from simulator.workload.graph import Dim, Tensor

__all__ = ["PARTIAL", "REPLICATE", "Layout", "Placement", "Rule", "Shard"]


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


@dataclass(frozen=True, slots=True)
class Rule:
    """These dimensions lie on this mesh axis; of one tensor at most one of them."""

    dims: frozenset[str]
    axis: str


def rule(axis: str, *dims: str) -> Rule:
    """A rule, as strategies write it."""
    return Rule(frozenset(dims), axis)


@dataclass(frozen=True, slots=True)
class Layout:
    """How tensors of named dimensions lie on a mesh.

    Args:
        name: of the strategy it comes from, for messages.
        mesh: (axis, ranks) of each axis.
        rules: in the order in which they take an axis.
        excess: how many times its even share the fullest rank has of a dimension (rows of experts).
    """

    name: str
    mesh: tuple[tuple[str, int], ...]
    rules: tuple[Rule, ...]
    excess: tuple[tuple[str, float], ...] = ()
    known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was found before, by what it depends on beside the layout."""

    def __post_init__(self) -> None:
        self.known.update(self.mesh)

    def __hash__(self) -> int:
        return hash((self.name, self.mesh, len(self.rules), self.excess))

    def ranks(self, axis: str) -> int:
        """How many ranks an axis has; 1 where the mesh has none of this name."""
        found: int = self.known.get(axis, 1)
        return found

    def along(self, dims: tuple[Dim, ...]) -> Mapping[str, Dim]:
        """Return axis -> the dimension that lies on it, of a tensor or of an operation with these dimensions.

        Axes of one rank are in it too: what is divided by one stays whole.  A dimension that serves another one (key/value heads serve
        heads) lies where that one does.

        Raises:
            LayoutError: two of them claim one axis.

        >>> layout = Layout("example", (("tensor", 4),), (rule("tensor", "heads"), rule("tensor", "sequence")))
        >>> sequence, heads, hidden = Dim("sequence", 8), Dim("heads", 4), Dim("hidden", 64)
        >>> {axis: dim.name for axis, dim in layout.along((sequence, heads)).items()}
        {'tensor': 'heads'}
        >>> {axis: dim.name for axis, dim in layout.along((sequence, hidden)).items()}
        {'tensor': 'sequence'}
        """
        key = "along", dims
        if key not in self.known:
            self.known[key] = self._along(dims)
        found: Mapping[str, Dim] = self.known[key]
        return found

    def _along(self, dims: tuple[Dim, ...]) -> Mapping[str, Dim]:
        found: dict[str, Dim] = {}
        for rule in self.rules:
            claims = {d.serves or d.name: d for d in dims if (d.serves or d.name) in rule.dims}
            if len(claims) > 1 and self.ranks(rule.axis) > 1:
                raise LayoutError(
                    f"layout {self.name!r} lays {' and '.join(sorted(claims))} of ({', '.join(d.name for d in dims)}) both on mesh "
                    f"axis {rule.axis!r}; an axis divides one dimension of a tensor. Way out: a layout that leaves one of them whole."
                )
            if claims and rule.axis not in found:
                found[rule.axis] = next(iter(claims.values()))
        return found

    def alike(self, one: Dim | None, other: Dim) -> bool:
        """Whether the same rule lays two dimensions on an axis."""
        if one is None:
            return False
        names = {one.serves or one.name, other.serves or other.name}
        return any(names <= rule.dims for rule in self.rules)

    def axes(self, dims: tuple[Dim, ...]) -> dict[str, Dim]:
        """Return what `along` does, of axes of several ranks."""
        return {axis: dim for axis, dim in self.along(dims).items() if self.ranks(axis) > 1}

    def placement(self, dims: tuple[Dim, ...]) -> dict[str, Placement]:
        """Return axis -> placement of a tensor of these dimensions, of axes of several ranks."""
        along = self.axes(dims)
        return {axis: Shard(along[axis].name) if axis in along else REPLICATE for axis, n in self.mesh if n > 1}

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
        if all(each == parts[0] for each in parts):
            return parts[0]
        return dim.size / sum(one.size / each for one, each in zip(dim.joins, parts, strict=True))

    def shared(self, dims: tuple[Dim, ...], axis: str) -> int:
        """How many ranks of an axis hold the same part of a tensor that lies on it; 1 where each has its own."""
        dim = self.along(dims).get(axis)
        return 1 if dim is None else self.ranks(axis) // self.parts(dim, axis)

    def ways(self, dims: tuple[Dim, ...]) -> float:
        """How many times as much as the fullest rank there is of a tensor of these dimensions.

        >>> layout = Layout("example", (("tensor", 4),), (rule("tensor", "ffn"),), (("rows", 2.0),))
        >>> layout.ways((Dim("tokens", 8), Dim("ffn", 16))), layout.ways((Dim("rows", 8),))
        (4, 0.5)
        """
        key = "ways", dims
        if key not in self.known:
            ways: float = math.prod(self._divisor(d, axis) for axis, d in self.along(dims).items())
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
        """Return the part of a tensor that one rank holds; errors as of `local`."""
        held = {d.name: axis for axis, d in self.along(tensor.dims).items()}
        return tensor.view(*(self._part(tensor, d, held[d.name]) if d.name in held else d for d in tensor.dims))

    def _part(self, tensor: Tensor, dim: Dim, axis: str) -> Dim:
        parts = self.parts(dim, axis)
        if dim.size % parts:
            near = next(n for n in range(min(parts, dim.size), 0, -1) if dim.size % n == 0)
            raise LayoutError(
                f"layout {self.name!r} lays {dim.name} of {tensor.name!r} on the {parts} ranks of mesh axis {axis!r}, but {dim.size} / "
                f"{parts} is no whole number. Nearest: {near} ranks."
            )
        return Dim(dim.name, dim.size // parts, dim.serves)

    def check(self, tensors: Iterable[Tensor]) -> None:
        """Refuse tensors that cannot lie so.

        Raises:
            LayoutError: a dimension does not divide, or two claim one axis; the tensor, the dimension and the axis are named.
        """
        for tensor in tensors:
            self.local_tensor(tensor)
