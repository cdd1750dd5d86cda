"""Where every tensor of a graph lies on a mesh, and which dimension of each operation the ranks of an axis divide.

A layout of rules says it for any graph (`lay_out`); annotations of a few tensors that are propagated say it for one (`infer.py`).
Placements of a tensor are a dict from mesh axis to `Shard`; on axes that it does not name every rank has all of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simulator.errors import LayoutError
from simulator.partition.layout import Layout, Mesh, Placement, Shard, kind_of
from simulator.partition.propagate import product_dims
from simulator.workload.graph import Attention, Dim, Exchange, HostWait, Kernel, LayerGraph, Lookup, Op, Product, Tensor
from simulator.workload.windows import Windowed

__all__ = ["HEADS", "LaidOut", "Placements", "lay_out", "local_dims", "one_family", "running_dims", "tensors_of"]

Placements = Mapping[str, Placement]

_TOKENS = frozenset(("batch", "sequence", "source_sequence", "copies", "expert_rows", "distances"))
"""Dimensions that count tokens: a kernel that writes them under another name leaves them where they lie."""
HEADS = ("heads", "state_heads", "state_groups", "state_channels", "state_inner", "convolved")
"""Dimensions that are whole heads, one beside the other: any operation may read them under another name."""
_HEADS = frozenset(HEADS)
_SEQUENCES = frozenset(("batch", "chunks"))
"""Whole sequences, and the chunks into which a state-space layer cuts them, likewise."""


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A graph on a mesh.

    Args:
        name: of the layout, for messages.
        mesh: (axis, ranks); of a dimension on several axes the first one's parts are the largest.
        tensors: name -> placements, of the graph's inputs and weights and of what its operations make.
        along: per operation mesh axis -> the dimension that its ranks divide.
        keeps_gathered: whether what was gathered for an operation stands until its gradients; otherwise it is gathered again.
    """

    name: str
    mesh: Mesh
    tensors: Mapping[str, Placements]
    along: tuple[Mapping[str, Dim], ...]
    keeps_gathered: bool = False

    @property
    def ranks(self) -> dict[str, int]:
        """Axis -> ranks."""
        return dict(self.mesh)

    def local(self, tensor: Tensor, placements: Placements) -> Tensor:
        """Return what one rank holds of a tensor; errors as of `local_dims`."""
        return tensor.view(*local_dims(tensor, placements, self.ranks, self.name))


def tensors_of(graph: LayerGraph) -> Iterable[Tensor]:
    """All tensors of a graph, as they were made."""
    return (*graph.inputs, *graph.weights, *(t for op in graph.ops for t in op.outputs))


def lay_out(graph: LayerGraph, layout: Layout) -> LaidOut:
    """Return a graph as the rules of a layout lay it.

    Raises:
        LayoutError: two dimensions of a tensor claim one axis, or one does not divide; both are named.
    """
    ranks = dict(layout.mesh)
    tensors = {}
    for tensor in tensors_of(graph):
        try:
            tensors[tensor.name] = {a: Shard(d.name) for a, d in layout.axes(tensor.dims, kind_of(tensor)).items()}
        except LayoutError as error:
            raise LayoutError(f"tensor {tensor.name!r}: {error}") from None
        local_dims(tensor, tensors[tensor.name], ranks, layout.name)
    along = tuple(_along(op, layout) for op in graph.ops)
    return LaidOut(layout.name, layout.mesh, tensors, along, layout.keeps_gathered)


def _along(op: Op, layout: Layout) -> Mapping[str, Dim]:
    """What a layout's rules divide of an operation: of a look-up its table, then of its output what is left."""
    if isinstance(op, Product) and layout.output_stationary:
        return layout.axes(product_dims(*op.outputs))
    if isinstance(op, Lookup):
        of_table = layout.axes(op.weights[0].dims, kind_of(op.weights[0]))
        return of_table | {a: d for a, d in layout.axes(op.outputs[0].dims).items() if a not in of_table}
    return layout.axes(running_dims(op))


def running_dims(op: Op) -> tuple[Dim, ...]:
    """Return the dimensions that an operation runs over and by which it can be divided.

    Attention runs over its queries: every one of them needs all keys, and all of a head's width.
    """
    if isinstance(op, Attention):
        q = op.inputs[0].dims
        return tuple(d for d in q if d.name in ("batch", "sequence", "heads"))
    if isinstance(op, Exchange | HostWait):
        return ()
    if isinstance(op, Kernel) and op.moves and not isinstance(op, Lookup):
        found = list(op.moves[0].dims)
        for dim in (d for t in (*op.outputs, *op.inputs) for d in t.dims):
            if not any((dim.serves or dim.name) == (d.serves or d.name) or one_family(op, dim, d) for d in found):
                found.append(dim)
        return tuple(found)
    if isinstance(op, Product):
        return product_dims(*(t for pair in op.pairs for t in pair))
    if isinstance(op, Windowed):
        return product_dims(*op.inputs, *(w.view(*w.dims[len(op.windows) :]) for w in op.weights), *op.outputs)
    read = op.inputs[:1] if isinstance(op, Lookup) else op.inputs
    return product_dims(*read, *(w for w in op.weights if w.role == "weight"), *op.outputs)


def one_family(op: Op, one: Dim, other: Dim) -> bool:
    """Return whether an operation may know a dimension under the name of another one."""
    families = (_HEADS, _SEQUENCES, _TOKENS) if isinstance(op, Kernel) else (_HEADS, _SEQUENCES)
    return any({one.serves or one.name, other.serves or other.name} <= family for family in families)


def local_dims(tensor: Tensor, placements: Placements, ranks: Mapping[str, int], layout: str) -> tuple[Dim, ...]:
    """Return the dimensions of what one rank holds.

    Args:
        ranks: axis -> how many.
        layout: its name, for messages.

    Raises:
        LayoutError: a size does not divide; tensor, dimension, axis and the nearest number of ranks are named.  A bias may be shorter than
            what it is added to, which is padded: the last rank has less of it.

    >>> w = Tensor("w", (Dim("hidden", 8), Dim("ffn", 12)), 2.0, "weight")
    >>> [d.size for d in local_dims(w, {"rows": Shard("ffn")}, {"rows": 4}, "example")]
    [8, 3]
    """
    on: dict[str, list[str]] = {}
    for axis, placement in placements.items():
        if isinstance(placement, Shard):
            on.setdefault(placement.dim, []).append(axis)
    return tuple(_part(d, on[d.name], ranks, tensor, layout) if d.name in on else d for d in tensor.dims)


def _part(dim: Dim, axes: list[str], ranks: Mapping[str, int], tensor: Tensor, layout: str) -> Dim:
    if dim.joins:
        joined = tuple(_part(one, axes, ranks, tensor, layout) for one in dim.joins)
        return Dim(dim.name, sum(one.size for one in joined), dim.serves, joined)
    parts = math.prod(ranks[axis] for axis in axes)
    if dim.serves and dim.size < parts and parts % dim.size == 0:
        parts = dim.size  # several ranks hold the same key/value head
    if dim.size % parts and tensor.role != "bias":
        named = " and ".join(repr(axis) for axis in axes)
        near = min((n for n in range(1, 2 * parts + 1) if dim.size % n == 0), key=lambda n: (abs(n - parts), n))
        raise LayoutError(
            f"a dimension is divided evenly, but layout {layout!r} lays {dim.name} = {dim.size} of {tensor.name!r} on the {parts} ranks of "
            f"mesh {'axis' if len(axes) == 1 else 'axes'} {named}. Nearest: {near} ranks."
        )
    return Dim(dim.name, -(-dim.size // parts), dim.serves)
