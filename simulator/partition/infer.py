"""Semi-automatic layouts: a user annotates a few tensors, and the rest follows from what reads and writes them.

A mesh axis on which a dimension of one tensor lies wants the same dimension of its neighbours: of all tensors of a component-wise
operation; of all operands and the result of an einsum that have it.  Component-wise operations come first, then einsums, then what gives
dimensions other names; each sweeps forward and backward until nothing changes.  Where two neighbours want an axis for different
dimensions, the one with more divided dimensions wins, and it is listed.  What nobody asked for stays whole, and that is said.

A kind of layer that a model repeats is looked at once: what flows between layers lies alike between all of them.
Source: Xu et al., GSPMD, arXiv 2105.04663, section 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.errors import LayoutError, UnknownNameError
from simulator.partition.exchanges import collectives_of
from simulator.partition.halos import halos_of
from simulator.partition.layout import Mesh, Shard
from simulator.partition.operands import experts_axes, operands_of, reduced_axes, same_dimension
from simulator.partition.placements import LaidOut, local_dims, running_dims, tensors_of
from simulator.workload.graph import Attention, Dim, Exchange, HostWait, LayerGraph, Lookup, Op, Product, Tensor

__all__ = ["Conflict", "Inferred", "choose_divisions", "flow_key", "infer"]

Annotations = Mapping[str, Mapping[str, str]]
"""Tensor -> mesh axis -> dimension."""

_COMPONENT_WISE, _EINSUM, _RENAMED = range(3)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two dimensions that an axis might divide: where, which was taken, which was not."""

    tensor: str
    operation: str
    axis: str
    taken: str
    left: str

    def __str__(self) -> str:
        return f"{self.tensor} at {self.operation}: mesh axis {self.axis!r} has {self.taken}, not {self.left}"


@dataclass(frozen=True, slots=True)
class Inferred:
    """What follows from annotations.

    Args:
        graphs: kind of layer -> where everything lies.
        given, found: tensors that were annotated, and that follow: name -> axis -> dimension.
        open: tensors that nothing divides.
        conflicts: what had to be decided.
        sweeps: over all graphs, forward and backward counted as one.
    """

    graphs: Mapping[str, LaidOut]
    given: Annotations
    found: Annotations
    open: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    sweeps: int


@dataclass
class _State:
    """Where tensors lie so far, as they were made; those that flow between layers are one."""

    ranks: Mapping[str, int]
    lies: dict[object, dict[str, str]] = field(default_factory=dict)
    fixed: set[object] = field(default_factory=set)
    made: dict[object, Tensor] = field(default_factory=dict)
    conflicts: dict[tuple[str, str, str], Conflict] = field(default_factory=dict)


def infer(graphs: Sequence[LayerGraph], mesh: Mesh, annotations: Annotations) -> Inferred:
    """Return where every tensor of a model lies, from annotations of some.

    Args:
        graphs: one per kind of layer.
        mesh: (axis, ranks).
        annotations: an empty one keeps a tensor whole.

    Raises:
        LayoutError: an annotation cannot be.
        UnknownNameError: it names a tensor, dimension or axis that is not there.

    >>> from simulator.workload.counts import model_graph
    >>> from simulator.workload.model import load_model
    >>> found = infer([model_graph(load_model("gpt2"), "layer")], (("cols", 4),), {"mlp up weight": {"cols": "ffn"}})
    >>> sorted(name for name, on in found.found.items() if on)
    ['activation function input', 'down input', 'mlp down weight', 'mlp up weight, bias']
    """
    state = _State(dict(mesh))
    state.made.update({flow_key(graph, t): t for graph in graphs for t in tensors_of(graph)})
    _annotate(state, graphs, annotations)
    steps = [(graph, op) for graph in graphs for op in graph.ops]
    sweeps = 0
    for most in (_COMPONENT_WISE, _EINSUM, _RENAMED):
        some = [(graph, op) for graph, op in steps if _priority(op) <= most]
        changed = True
        while changed:
            changed = False
            for graph, op in (*some, *reversed(some)):
                changed |= _spread(state, graph, op)
            sweeps += 1
    state.conflicts.clear()  # of what changed later; those that are left are met once more
    for graph, op in steps:
        _spread(state, graph, op)
    return _result(state, graphs, mesh, annotations, sweeps)


def _priority(op: Op) -> int:
    if isinstance(op, Exchange | HostWait):
        return _RENAMED
    return _EINSUM if isinstance(op, Product | Lookup | Attention) else _COMPONENT_WISE


def flow_key(graph: LayerGraph, tensor: Tensor) -> object:
    """Return what a tensor is known by: its layer and name; of what flows between layers, its dimensions."""
    flows = graph.inputs[:1] + graph.outputs[:1]
    if any(tensor.name == t.name for t in flows) and tensor.dims[-1:] and tensor.dims[-1].name == "hidden":
        return tuple(d.name for d in tensor.dims)
    return graph.kind, tensor.name


def _annotate(state: _State, graphs: Sequence[LayerGraph], annotations: Annotations) -> None:
    known = {t.name: (graph, t) for graph in graphs for t in tensors_of(graph)}
    for name, on in annotations.items():
        if name not in known:
            raise UnknownNameError("tensor", name, known, few=True)
        for axis, dim in on.items():
            if axis not in state.ranks:
                raise UnknownNameError("mesh axis", axis, state.ranks)
            if dim not in {d.name for d in known[name][1].dims}:
                raise UnknownNameError(f"dimension of {name!r}", dim, [d.name for d in known[name][1].dims])
        for graph in graphs:
            for tensor in tensors_of(graph):
                if tensor.name == name:
                    local_dims(tensor, {a: Shard(d) for a, d in on.items()}, state.ranks, "annotations")
                    key = flow_key(graph, tensor)
                    if key in state.fixed and state.lies[key] != dict(on):
                        raise LayoutError(
                            f"what flows between layers lies alike between all, but {name!r} is annotated with {dict(on)} and before it "
                            f"with {state.lies[key]}. Nearest: one annotation for both."
                        )
                    state.lies[key] = dict(on)
                    state.fixed.add(key)


def _spread(state: _State, graph: LayerGraph, op: Op) -> bool:
    """Let all tensors of an operation learn from each other; whether one did."""
    tensors = _neighbours(op)
    changed = False
    for tensor in tensors:
        for other in tensors:
            if other is not tensor and flow_key(graph, other) in state.lies:
                changed |= _learn(state, graph, op, tensor, other)
    return changed


def _neighbours(op: Op) -> tuple[Tensor, ...]:
    """The tensors of an operation that tell each other how they lie; a look-up only carries along what else it is given."""
    if isinstance(op, Lookup):
        return (*op.inputs[:1], *op.weights, *op.outputs)
    return (*op.inputs, *op.weights, *op.outputs)


def _learn(state: _State, graph: LayerGraph, op: Op, tensor: Tensor, other: Tensor) -> bool:
    key = flow_key(graph, tensor)
    mine = state.lies.get(key, {})
    made, wanted = state.made[key], {}
    other_key = flow_key(graph, other)
    for axis, name in state.lies[other_key].items():
        seen = same_dimension(op, other.dims, name, state.made[other_key])
        dim = _same(op, tensor, other, seen.name) if seen else None
        own = same_dimension(op, made.dims, dim, tensor) if dim else None
        if own is not None:
            wanted[axis] = own.name
    if not wanted or all(mine.get(axis) == dim for axis, dim in wanted.items()):
        return False
    clash = {axis: dim for axis, dim in wanted.items() if mine.get(axis, dim) != dim}
    merged = {**mine, **{a: d for a, d in wanted.items() if a not in mine}}
    if clash and len(wanted) > len(mine) and key not in state.fixed:
        merged = wanted
    for axis, dim in clash.items():
        taken = merged.get(axis, mine[axis])
        left = mine[axis] if taken == dim else dim
        state.conflicts[tensor.name, op.label, axis] = Conflict(tensor.name, op.label, axis, taken, left)
    if key in state.fixed or merged == mine or not _divides(state, made, merged):
        return False
    state.lies[key] = merged
    return True


def _same(op: Op, tensor: Tensor, other: Tensor, name: str) -> str | None:
    """The dimension of a tensor that is the same as one of another tensor of an operation; None where it has none."""
    if isinstance(op, Attention) and name in ("sequence", "source_sequence", "head_dim", "value_dim"):
        together = (op.inputs[0].name, *(t.name for t in op.outputs))
        keys = tuple(t.name for t in op.inputs[1:3])
        if (
            name in ("head_dim", "value_dim")
            or (tensor.name in together) != (other.name in together)
            or name not in _names(tensor)
        ):
            return None
        return name if {tensor.name, other.name} <= {*together} or {tensor.name, other.name} <= {*keys} else None
    found = same_dimension(op, tensor.dims, name, other)
    return found.name if found else None


def _names(tensor: Tensor) -> set[str]:
    return {d.name for d in tensor.dims}


def _divides(state: _State, tensor: Tensor, on: Mapping[str, str]) -> bool:
    try:
        local_dims(tensor, {a: Shard(d) for a, d in on.items()}, state.ranks, "propagation")
    except LayoutError:
        return False
    return True


def _result(
    state: _State,
    graphs: Sequence[LayerGraph],
    mesh: Mesh,
    annotations: Annotations,
    sweeps: int,
) -> Inferred:
    laid, found, still = {}, {}, []
    for graph in graphs:
        tensors = {}
        for tensor in tensors_of(graph):
            on = state.lies.get(flow_key(graph, tensor), {})
            tensors[tensor.name] = {axis: Shard(dim) for axis, dim in on.items() if state.ranks[axis] > 1}
            if tensor.name not in annotations:
                found[tensor.name] = dict(on)
                if not on:
                    still.append(tensor.name)
        laid[graph.kind] = choose_divisions(graph, mesh, tensors)
    conflicts = tuple(state.conflicts.values())
    return Inferred(laid, annotations, found, tuple(dict.fromkeys(still)), conflicts, sweeps)


def choose_divisions(graph: LayerGraph, mesh: Mesh, tensors: Mapping[str, Mapping[str, Shard]]) -> LaidOut:
    """Return a graph whose tensors lie so, every operation divided by what moves least between ranks.

    Each axis divides a dimension of the operation that lies on it in some tensor, so that no work is done twice where it can be shared.
    """
    laid = LaidOut("propagated", mesh, tensors, ({},) * len(graph.ops))
    dealt = experts_axes(graph, laid)
    return LaidOut("propagated", mesh, tensors, tuple(_along(op, laid, dealt) for op in graph.ops))


def _along(op: Op, laid: LaidOut, dealt: frozenset[str]) -> dict[str, Dim]:
    out: dict[str, Dim] = {}
    running = running_dims(op)
    order = dict.fromkeys(a for t in (*op.outputs, *op.inputs, *op.weights) for a in laid.tensors.get(t.name, {}))
    for axis in order:
        some = list(_candidates(op, axis, running, laid))
        if len(some) == 1:
            out[axis] = some[0]
        elif some:
            out[axis] = min(some, key=lambda dim: _sent(op, {**out, axis: dim}, laid, dealt))
    return out


def _candidates(op: Op, axis: str, running: tuple[Dim, ...], laid: LaidOut) -> Iterable[Dim]:
    """Dimensions of an operation that lie on an axis, those of its result first."""
    found: dict[str, Dim] = {}
    for tensor in (*op.outputs, *op.inputs, *op.weights):
        placement = laid.tensors.get(tensor.name, {}).get(axis)
        keys = isinstance(op, Attention) and tensor in op.inputs[1:3]
        dim = same_dimension(op, running, placement.dim, tensor) if isinstance(placement, Shard) else None
        if dim is not None and not (keys and dim.name == "sequence"):
            found.setdefault(dim.name, dim)
    return found.values()


def _sent(op: Op, along: Mapping[str, Dim], laid: LaidOut, dealt: frozenset[str]) -> float:
    try:
        operands = operands_of(op, along, laid, dealt, True)
        halos = tuple(halos_of(op, operands, laid))
    except LayoutError:
        return math.inf
    return sum(c.sent for c in collectives_of(op, operands, reduced_axes(op, along), laid, halos))
