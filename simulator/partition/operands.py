"""How an operation of a graph that lies on a mesh finds its tensors, and the moves that bring them there and back.

An operand that lies otherwise than the operation needs it is moved before, a result that lies otherwise than the layout says behind it.
Gradients go the same way back: what every rank of an axis read is a sum there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.partition.layout import REPLICATE, Placement, Shard
from simulator.partition.placements import LaidOut, Placements, one_family
from simulator.partition.propagate import wanted
from simulator.partition.redistribute import Move, redistribute
from simulator.workload.graph import Attention, Dim, Exchange, HostWait, Kernel, LayerGraph, Lookup, Op, Product, Tensor

__all__ = ["Operand", "experts_axes", "operands_of", "reduced_axes", "same_dimension"]


_EXPERTS = ("experts", "expert_rows")
"""Where an axis deals experts out it deals out their rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor that an operation reads or writes.

    Args:
        tensor: as the operation sees it, undivided.
        role: "input", "weight" or "output".
        held: how it lies before and after.
        used: how the operation reads it, or what comes out of it.
        shape: dimensions of the part that a rank holds; `used_shape`: that it computes on.
        forward: what brings it from `held` to `used`; of an output the other way.
        backward: what brings its gradient to `held`; of an output, to where the operation's backward reads it.
        again: what brings an operand to `used` once more for the backward; nothing of what is kept as it was read.
    """

    tensor: Tensor
    role: str
    held: Placements
    used: Placements
    shape: tuple[Dim, ...]
    used_shape: tuple[Dim, ...]
    forward: tuple[Move, ...]
    backward: tuple[Move, ...]
    again: tuple[Move, ...] = ()


def operands_of(
    op: Op,
    along: Mapping[str, Dim],
    laid: LaidOut,
    dealt: frozenset[str],
    gathers_again: bool,
) -> tuple[Operand, ...]:
    """Return the operands of an operation: inputs, weights, outputs.

    Args:
        along: mesh axis -> the dimension that its ranks divide.
        dealt: axes over which experts are dealt out.
        gathers_again: see `derive`.
    """
    if isinstance(op, Exchange):
        return _exchanged(op, laid, dealt)
    if isinstance(op, HostWait):
        return tuple(_still(t, "input", _seen(op, t, laid), laid) for t in op.inputs)
    return _operands(op, along, laid, gathers_again)


def experts_axes(graph: LayerGraph, laid: LaidOut) -> frozenset[str]:
    """Return the axes over which experts are dealt out."""
    return frozenset(axis for w in graph.weights for axis, p in laid.tensors[w.name].items() if p == Shard("experts"))


def _operands(op: Op, along: Mapping[str, Dim], laid: LaidOut, gathers_again: bool) -> tuple[Operand, ...]:
    """Operands of an operation that computes; what is added to its output lies as the output does.

    Numbers of tokens come to every rank that needs them, and each knows the gradient of its losses: nobody moves these.
    """
    out: list[Operand] = []
    behind = _divided(op.outputs[0], laid) if op.outputs else {}
    matrices = isinstance(op, Product | Lookup)
    beside = (
        {t.name for t in op.inputs} - {t.name for pair in op.pairs for t in pair} if isinstance(op, Product) else set()
    )
    for t in op.inputs:
        if t.name in beside:
            out.append(_still(t, "input", _seen(op, t, laid), laid))
        elif isinstance(op, Lookup):
            held = _used(op, t, "input", along, {}) if t is op.inputs[0] else _seen(op, t, laid)
            out.append(_still(t, "input", held, laid))
        else:
            out.append(_operand(op, t, "input", along, laid, gathers_again))
    for w in op.weights:
        runs = along if w.role == "weight" or not matrices else behind
        out.append(_operand(op, w, "weight", runs, laid, gathers_again))
    for t in op.outputs:
        if op.role == "loss":
            out.append(_still(t, "output", _used(op, t, "output", along, {}), laid))
        else:
            mask = isinstance(op, Lookup) and t is not op.outputs[0]
            out.append(_operand(op, t, "output", behind if mask else along, laid, False))
    return tuple(out)


def _still(tensor: Tensor, role: str, held: Placements, laid: LaidOut) -> Operand:
    """A tensor that is read or left where it lies."""
    shape = laid.local(tensor, held).dims
    return Operand(
        tensor=tensor, role=role, held=held, used=held, shape=shape, used_shape=shape, forward=(), backward=()
    )


def _seen(op: Op, tensor: Tensor, laid: LaidOut) -> dict[str, Placement]:
    """How a tensor lies, in the names of the dimensions that an operation sees."""
    names, out = {d.name for d in tensor.dims}, dict(laid.tensors[tensor.name])
    for axis, placement in out.items():
        if isinstance(placement, Shard) and placement.dim not in names:
            found = same_dimension(op, tensor.dims, placement.dim, tensor)
            if found is not None:
                out[axis] = Shard(found.name)
    return out


def _divided(tensor: Tensor, laid: LaidOut) -> dict[str, Dim]:
    """Mesh axis -> the dimension of a tensor that lies on it."""
    dims = {d.name: d for d in tensor.dims}
    return {axis: dims[p.dim] for axis, p in laid.tensors[tensor.name].items() if isinstance(p, Shard)}


def _operand(
    op: Op, tensor: Tensor, role: str, along: Mapping[str, Dim], laid: LaidOut, gathers_again: bool
) -> Operand:
    """An operand and what is moved around it."""
    held = _seen(op, tensor, laid)
    used, gradient = (_used(op, tensor, role, along, held, back) for back in (False, True))
    again: tuple[Move, ...] = ()
    if role == "output":
        forward, backward = redistribute(used, held), redistribute(held, gradient)
    else:
        forward, backward = redistribute(held, used), redistribute(gradient, held)
        again = forward if gathers_again and any(m.collective for m in forward) else ()
    return Operand(
        tensor=tensor,
        role=role,
        held=held,
        used=used,
        shape=laid.local(tensor, held).dims,
        used_shape=laid.local(tensor, used).dims,
        forward=forward,
        backward=() if tensor.role == "mask" else backward,
        again=again,
    )


def _used(
    op: Op, tensor: Tensor, role: str, along: Mapping[str, Dim], held: Placements, gradient: bool = False
) -> dict[str, Placement]:
    """How an operation that runs so reads a tensor or leaves it; of `gradient`, how its backward leaves or reads the gradient."""
    result = (role == "output") != gradient
    seen = tensor
    if isinstance(op, Attention) and role == "input" and tensor is not op.inputs[0]:
        seen = tensor.view(*(d for d in tensor.dims if d.name not in ("sequence", "source_sequence")))
    out = wanted(along, seen, result)
    names = {d.serves or d.name for d in seen.dims}
    for axis, dim in along.items():
        if _renamed(op, dim, held.get(axis, REPLICATE)):
            out[axis] = held[axis]
        elif (dim.serves or dim.name) in names:
            continue
        elif isinstance(op, Product) and op.of_experts and dim.name == "experts" and "expert_rows" in names:
            out[axis] = Shard("expert_rows")
        elif dim.name == "expert_rows" and held.get(axis) == Shard("experts"):
            out[axis] = Shard("experts")
        elif role == "output" and result and _complete(op, dim):
            out[axis] = REPLICATE
    return out


def _renamed(op: Op, dim: Dim, placement: Placement) -> bool:
    """Whether a tensor lies by the dimension that an operation divides, under another name."""
    if not isinstance(placement, Shard):
        return False
    return (dim.serves or dim.name) != placement.dim and one_family(op, dim, Dim(placement.dim, 1))


def same_dimension(op: Op, dims: Sequence[Dim], name: str, other: Tensor) -> Dim | None:
    """Return which of some dimensions is the one that an operation knows in another tensor by a name; None if none is."""
    name = next((d.serves or d.name for d in other.dims if d.name == name), name)
    names = {d.serves or d.name: d for d in dims}
    if name in names:
        return names[name]
    rows = isinstance(op, Product) and op.of_experts and name in _EXPERTS
    return next((d for n, d in names.items() if one_family(op, d, Dim(name, 1)) or (rows and n in _EXPERTS)), None)


def _complete(op: Op, dim: Dim) -> bool:
    """Whether all ranks of an axis that divides a dimension find the same sum of it, by a collective of their own."""
    return isinstance(op, Kernel) and any(dim.name == d.name for d in op.reduces)


def reduced_axes(op: Op, along: Mapping[str, Dim]) -> tuple[str, ...]:
    """Return the axes that divide a dimension over which a kernel finds sums."""
    return tuple(axis for axis, dim in along.items() if _complete(op, dim))


def _exchanged(op: Exchange, laid: LaidOut, dealt: frozenset[str]) -> tuple[Operand, ...]:
    """Rows that go to their experts or come back: along axes that have experts of their own they change their place.

    They are the same rows before and behind, so they are moved as a tensor that has them once as tokens and once as rows of experts.
    """
    given, out = op.inputs[0], op.outputs[0]
    held, after = laid.tensors[given.name], laid.tensors[out.name]
    before, behind = given.dims[0].name, out.dims[0].name
    moves, back = [], []
    for axis in dict.fromkeys((*held, *after)):
        one, other = held.get(axis, REPLICATE), after.get(axis, REPLICATE)
        stays = (one, other) == (Shard(before), Shard(behind)) and axis not in dealt
        if one != other and not stays:
            moves.append(Move(axis, one, other))
            back.append(Move(axis, other, one))
    shape, behind_shape = laid.local(given, held).dims, laid.local(out, after).dims
    rows = {axis: Shard(before) if p == Shard(behind) else p for axis, p in after.items()}
    return (
        Operand(
            tensor=given,
            role="input",
            held=held,
            used=rows,
            shape=shape,
            used_shape=laid.local(given, rows).dims,
            forward=tuple(moves),
            backward=tuple(back),
        ),
        Operand(
            tensor=out,
            role="output",
            held=after,
            used=after,
            shape=behind_shape,
            used_shape=behind_shape,
            forward=(),
            backward=(),
        ),
    )
