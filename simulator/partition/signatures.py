"""Layouts chosen as a compiler chooses them: operation by operation, in their order, by what has to be moved least for each.

Along every mesh axis an operation may divide any of its dimensions, or none; of these signatures the one is taken whose operands cost
least to bring from where they lie, axis by axis until no other is better.  Its result lies as it comes out, a sum is added up at once.
What flows between layers lies between all of them as it comes out of the first one that makes it.
Source: Yuan et al., OneFlow, arXiv 2110.15032, section 3.2 (its compiler chooses greedily in topological order).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from simulator.errors import LayoutError
from simulator.partition.derive import DerivedOp
from simulator.partition.infer import flow_key
from simulator.partition.layout import Mesh, Placement, Shard
from simulator.partition.operands import experts_axes, operands_of, same_dimension
from simulator.partition.placements import LaidOut, local_dims, running_dims, tensors_of
from simulator.partition.redistribute import Move, moved_bytes, redistribute, sizes
from simulator.workload.graph import Dim, Exchange, LayerGraph, Op, Tensor

__all__ = ["Chosen", "boxing_bytes", "choose", "choose_signatures", "op_boxing_bytes"]

Placements = Mapping[str, Placement]


def boxing_bytes(tensor: Tensor, held: Placements, wanted: Placements, mesh: Mesh) -> float:
    """Return the bytes that a change of placement moves over all ranks, in OneFlow's count [B].

    >>> w = Tensor("w", (Dim("k", 8), Dim("n", 8)), 2.0, "weight")
    >>> boxing_bytes(w, {"cols": Shard("n")}, {}, (("cols", 4),))
    384.0
    """
    return _moved(tensor, held, redistribute(held, wanted), mesh)


def op_boxing_bytes(op: DerivedOp, mesh: Mesh) -> float:
    """Return the bytes that an operation's forward moves over all ranks, for its operands and of what it makes, in the same count [B]."""
    return sum(_moved(o.tensor, o.used if o.role == "output" else o.held, o.forward, mesh) for o in op.operands)


def _moved(tensor: Tensor, held: Placements, moves: tuple[Move, ...], mesh: Mesh) -> float:
    ranks = dict(mesh)
    total = math.prod(ranks.values())
    out = 0.0
    for move, size in sizes(held, moves, tensor.bytes, ranks):
        groups = total // ranks[move.axis]
        out += groups * moved_bytes(move, size, ranks[move.axis])
    return out


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen for a model.

    Args:
        graphs: kind of layer -> where everything lies, and what every operation divides.
        given, found: tensors that were annotated, and all others: name -> axis -> dimension.
    """

    graphs: Mapping[str, LaidOut]
    given: Mapping[str, Mapping[str, str]]
    found: Mapping[str, Mapping[str, str]]


def choose(graphs: Sequence[LayerGraph], mesh: Mesh, annotations: Mapping[str, Mapping[str, str]]) -> Chosen:
    """Return signatures of least boxing cost for all kinds of layers of a model.

    Args:
        graphs: one per kind of layer, in their order.
        annotations: tensor -> axis -> dimension; of what operations make, too, which is brought there.

    Raises:
        LayoutError: an annotation cannot be.

    >>> from simulator.workload.counts import model_graph
    >>> from simulator.workload.model import load_model
    >>> found = choose([model_graph(load_model("gpt2"), "layer")], (("cols", 4),), {"mlp up weight": {"cols": "ffn"}})
    >>> [name for name, on in found.found.items() if on]
    ['activation function input', 'down input']
    """
    given = {name: {a: Shard(d) for a, d in on.items() if dict(mesh)[a] > 1} for name, on in annotations.items()}
    flows: dict[object, Placements] = {}
    laid: dict[str, LaidOut] = {}
    for graph in graphs:
        ends = (*graph.inputs[:1], *graph.outputs[:1])
        known = {t.name: flows[flow_key(graph, t)] for t in ends if flow_key(graph, t) in flows}
        for tensor in tensors_of(graph):
            if tensor.name in given:
                local_dims(tensor, given[tensor.name], dict(mesh), "annotations")
        laid[graph.kind] = choose_signatures(graph, mesh, {**known, **given})
        for tensor in reversed(ends):
            flows.setdefault(flow_key(graph, tensor), laid[graph.kind].tensors[tensor.name])
    found = {
        name: {axis: p.dim for axis, p in on.items() if isinstance(p, Shard)}
        for one in laid.values()
        for name, on in one.tensors.items()
        if name not in annotations
    }
    return Chosen(laid, annotations, found)


def choose_signatures(graph: LayerGraph, mesh: Mesh, given: Mapping[str, Placements]) -> LaidOut:
    """Return a graph whose operations have signatures of least boxing cost; inputs and weights that are not given are whole.

    Args:
        given: placements of tensors by name; of what operations make, where it is brought.
    """
    tensors: dict[str, Placements] = {t.name: dict(given.get(t.name, {})) for t in (*graph.inputs, *graph.weights)}
    tensors |= {t.name: dict(given[t.name]) for t in tensors_of(graph) if t.name in given}
    along: list[dict[str, Dim]] = []
    for op in graph.ops:
        chosen = _signature(op, graph, mesh, tensors)
        along.append(chosen)
        for tensor in op.outputs:
            if tensor.name not in given:
                tensors[tensor.name] = _comes_out(op, tensor, chosen, graph, mesh, tensors)
    return LaidOut("signatures", mesh, tensors, tuple(along))


def _comes_out(
    op: Op,
    tensor: Tensor,
    along: Mapping[str, Dim],
    graph: LayerGraph,
    mesh: Mesh,
    tensors: Mapping[str, Placements],
) -> Placements:
    """How a result lies where it is made; rows that are exchanged lie as before, and where experts are dealt out by them."""
    on = {axis: same_dimension(op, tensor.dims, d.name, Tensor("", (d,), 0.0)) for axis, d in along.items()}
    if isinstance(op, Exchange):
        weights = {w.name: tensors[w.name] for w in graph.weights}
        dealt = experts_axes(graph, LaidOut("signatures", mesh, weights, ()))
        rows = (axis for axis, p in tensors[op.inputs[0].name].items() if p == Shard(op.inputs[0].dims[0].name))
        on = dict.fromkeys((*rows, *(axis for axis, _ in mesh if axis in dealt)), tensor.dims[0])
    out: dict[str, Placement] = {}
    for axis, dim in on.items():
        if dim is not None and _divides(tensor, {**out, axis: Shard(dim.name)}, mesh):
            out[axis] = Shard(dim.name)
    return out


def _divides(tensor: Tensor, placements: Placements, mesh: Mesh) -> bool:
    try:
        local_dims(tensor, placements, dict(mesh), "signatures")
    except LayoutError:
        return False
    return True


def _signature(op: Op, graph: LayerGraph, mesh: Mesh, tensors: Mapping[str, Placements]) -> dict[str, Dim]:
    """What an operation divides along every axis: the best of each axis for what the others divide, until nothing is better."""
    chosen: dict[str, Dim] = {}
    least = _cost(op, chosen, graph, mesh, tensors)
    better = True
    while better:
        better = False
        for axis in (axis for axis, n in mesh if n > 1):
            for dim in _signatures(op):
                one = _with(chosen, axis, dim, mesh)
                cost = _cost(op, one, graph, mesh, tensors)
                if cost < least:
                    chosen, least, better = one, cost, True
    return chosen


def _signatures(op: Op) -> Iterable[Dim | None]:
    """What an axis may divide: a dimension, or nothing."""
    return (*running_dims(op), None)


def _with(along: Mapping[str, Dim], axis: str, dim: Dim | None, mesh: Mesh) -> dict[str, Dim]:
    """Divided otherwise along one axis; axes stand in the order of the mesh."""
    found = {a: dim if a == axis else along.get(a) for a, _ in mesh}
    return {a: d for a, d in found.items() if d is not None}


def _cost(
    op: Op, along: Mapping[str, Dim], graph: LayerGraph, mesh: Mesh, tensors: Mapping[str, Placements]
) -> tuple[float, int]:
    """Bytes moved for operands, and of a result that is given its place; between equals, along how many axes operands change at all."""
    laid = LaidOut("signatures", mesh, {t.name: tensors.get(t.name, {}) for t in tensors_of(graph)}, ())
    size, changes = 0.0, 0
    try:
        operands = operands_of(op, along, laid, experts_axes(graph, laid), False)
    except LayoutError:  # a size that the axis does not divide
        return math.inf, 0
    for o in operands:
        if o.role != "output":
            size += boxing_bytes(o.tensor, o.held, o.used, mesh)
            lies = laid.tensors[o.tensor.name]
            changes += sum(isinstance(o.used.get(axis), Shard) != (axis in lies) for axis, _ in mesh)
        elif o.tensor.name in tensors:
            size += boxing_bytes(o.tensor, o.used, o.held, mesh)
    return size, changes
