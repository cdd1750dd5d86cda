"""Layouts chosen as a compiler chooses them: operation by operation, in their order, by what has to be moved least for each.

Along every mesh axis an operation may divide any of its dimensions, or none; of these signatures the one is taken whose operands cost
least to bring from where they lie.  Its result lies as it comes out, a sum is added up at once.
Source: Yuan et al., OneFlow, arXiv 2110.15032, section 3.2 (its compiler chooses greedily in topological order).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from simulator.errors import LayoutError
from simulator.partition.layout import Placement, Shard
from simulator.partition.operands import experts_axes, operands_of
from simulator.partition.placements import LaidOut, running_dims, tensors_of
from simulator.partition.redistribute import moved_bytes, redistribute, sizes
from simulator.workload.graph import Dim, LayerGraph, Op, Tensor

__all__ = ["boxing_bytes", "choose_signatures"]

Mesh = tuple[tuple[str, int], ...]
Placements = Mapping[str, Placement]


def boxing_bytes(tensor: Tensor, held: Placements, wanted: Placements, mesh: Mesh) -> float:
    """Return the bytes that a change of placement moves over all ranks, in OneFlow's count [B].

    >>> w = Tensor("w", (Dim("k", 8), Dim("n", 8)), 2.0, "weight")
    >>> boxing_bytes(w, {"cols": Shard("n")}, {}, (("cols", 4),))
    384.0
    """
    ranks = dict(mesh)
    total = math.prod(ranks.values())
    out = 0.0
    for move, size in sizes(held, redistribute(held, wanted), tensor.bytes, ranks):
        groups = total // ranks[move.axis]
        out += groups * moved_bytes(move, size, ranks[move.axis])
    return out


def choose_signatures(graph: LayerGraph, mesh: Mesh, given: Mapping[str, Placements]) -> LaidOut:
    """Return a graph whose operations have signatures of least boxing cost; what is not given and not made is whole.

    Args:
        given: placements of inputs and weights by name.
    """
    tensors: dict[str, Placements] = {t.name: dict(given.get(t.name, {})) for t in (*graph.inputs, *graph.weights)}
    along: list[dict[str, Dim]] = []
    for op in graph.ops:
        chosen: dict[str, Dim] = {}
        for axis, n in mesh:
            if n > 1:
                best = min(_signatures(op), key=lambda dim: _cost(op, _with(chosen, axis, dim), graph, mesh, tensors))
                chosen = _with(chosen, axis, best)
        along.append(chosen)
        for tensor in op.outputs:
            names = {d.serves or d.name: d.name for d in tensor.dims}
            on = {axis: names[d.serves or d.name] for axis, d in chosen.items() if (d.serves or d.name) in names}
            tensors[tensor.name] = {axis: Shard(name) for axis, name in on.items()}
    return LaidOut("signatures", mesh, tensors, tuple(along))


def _signatures(op: Op) -> Iterable[Dim | None]:
    """What an axis may divide: a dimension, or nothing."""
    return (*running_dims(op), None)


def _with(along: Mapping[str, Dim], axis: str, dim: Dim | None) -> dict[str, Dim]:
    return dict(along) if dim is None else {**along, axis: dim}


def _cost(
    op: Op, along: Mapping[str, Dim], graph: LayerGraph, mesh: Mesh, tensors: Mapping[str, Placements]
) -> tuple[float, int]:
    """Bytes moved for the operands; between equals, how many of them have to change at all."""
    laid = LaidOut("signatures", mesh, {t.name: tensors.get(t.name, {}) for t in tensors_of(graph)}, ())
    size, changes = 0.0, 0
    try:
        operands = operands_of(op, along, laid, experts_axes(graph, laid), False)
    except LayoutError:  # a size that the axis does not divide
        return math.inf, 0
    for o in operands:
        if o.role != "output":
            size += boxing_bytes(o.tensor, o.held, o.used, mesh)
            changes += len(o.forward)
    return size, changes
