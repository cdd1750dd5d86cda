"""The collectives of an operation: those of its operands' moves, and of the sums that it finds on its way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from simulator.partition.halos import Halo
from simulator.partition.layout import Shard
from simulator.partition.operands import Operand
from simulator.partition.placements import LaidOut, Placements
from simulator.partition.redistribute import Move
from simulator.workload.graph import Kernel, Op, count

__all__ = ["Collective", "collectives_of"]

_STATISTIC = 4.0
"""Bytes of a sum or maximum that a norm, a softmax or a loss finds: they are kept in fp32."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective.

    Args:
        kind: as in `collectives.KINDS`.
        axes: of the mesh, whose ranks take part.
        bytes: largest buffer of a rank.
        direction: "forward" or "backward".
        tensor: what is moved, or the sum that is found.
        sent: bytes that a rank sends in a ring, or in all_to_all.
        ranks: how many take part; fewer than the axes have where neighbours share key/value heads.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: float
    direction: str
    tensor: str
    sent: float
    ranks: int


def collectives_of(
    op: Op, operands: tuple[Operand, ...], reduces: tuple[str, ...], laid: LaidOut, halos: tuple[Halo, ...] = ()
) -> Iterator[Collective]:
    """Yield all collectives of an operation; weights, and results, that go the same way go together."""
    before = [o for o in operands if o.role != "output"]
    after = [o for o in operands if o.role == "output"]
    yield from _together((o, _moves(o, o.forward, o.held, laid, "forward")) for o in before)
    yield from (Collective("send_recv", h.axes, h.bytes, "forward", h.tensor, h.bytes, h.ranks) for h in halos)
    yield from _statistics(op, operands, reduces, laid, "forward")
    yield from _together((o, _moves(o, o.forward, o.used, laid, "forward")) for o in after)
    yield from _together((o, _moves(o, o.backward, o.held, laid, "backward", "gradient of ")) for o in after)
    yield from _statistics(op, operands, reduces, laid, "backward")
    yield from _together((o, _moves(o, o.again, o.held, laid, "backward")) for o in before)
    for h in reversed(halos):
        yield Collective("send_recv", h.axes, h.bytes, "backward", f"gradient of {h.tensor}", h.bytes, h.ranks)
    starts = [(o, {**o.used, **{m.axis: m.held for m in o.backward}}) for o in before]
    yield from _together((o, _moves(o, o.backward, start, laid, "backward", "gradient of ")) for o, start in starts)
    yield from _shared(before, laid)


def _together(found: Iterable[tuple[Operand, Iterable[Collective]]]) -> Iterator[Collective]:
    """Collectives of one kind over the same axes as one, of all weights or of all results; inputs are moved one by one."""
    joined: dict[tuple[str, str, tuple[str, ...]], Collective] = {}
    for o, some in found:
        for c in some:
            key = o.tensor.name if o.role == "input" else o.role, c.kind, c.axes
            known = joined.get(key)
            if known is not None:
                name = "gradients of its " if c.tensor.startswith("gradient") else "its "
                what = name + ("weights" if o.role == "weight" else "results")
                c = replace(c, tensor=what, bytes=known.bytes + c.bytes, sent=known.sent + c.sent)
            joined[key] = c
    yield from joined.values()


def _shared(operands: list[Operand], laid: LaidOut) -> Iterator[Collective]:
    """The gradients of weights of which neighbours on an axis have the same part: key/value heads that are fewer than ranks."""
    found: dict[tuple[tuple[str, ...], int], float] = {}
    for o in operands:
        for dim, mine in zip(o.tensor.dims, o.shape, strict=True):
            axes = tuple(axis for axis, p in o.held.items() if p == Shard(dim.name))
            ranks = math.prod(laid.ranks[axis] for axis in axes) * mine.size // dim.size
            if o.role == "weight" and dim.serves and ranks > 1:
                found[axes, ranks] = found.get((axes, ranks), 0.0) + count(o.shape) * o.tensor.element
    for (axes, ranks), size in found.items():
        yield _collective("all_reduce", axes, size, "backward", "gradients of shared heads", laid, ranks)


def _collective(
    kind: str, axes: tuple[str, ...], size: float, direction: str, tensor: str, laid: LaidOut, ranks: int = 0
) -> Collective:
    """A collective whose largest buffer on a rank has so many bytes; `ranks`: 0 = all of the axes."""
    n = ranks or math.prod(laid.ranks[axis] for axis in axes)
    sent = (2.0 if kind == "all_reduce" else 1.0) * (n - 1) / n * size
    return Collective(kind, axes, size, direction, tensor, sent, n)


def _moves(
    o: Operand, moves: tuple[Move, ...], start: Placements, laid: LaidOut, direction: str, prefix: str = ""
) -> Iterator[Collective]:
    """The collectives of some moves one after the other; equal ones that follow each other are one over several axes."""
    lies = dict(start)
    found: list[Collective] = []
    for move in moves:
        before = _size(o, lies, laid)
        lies[move.axis] = move.wanted
        kind, size = move.collective, max(before, _size(o, lies, laid))
        axes: tuple[str, ...] = (move.axis,)
        if found and kind == found[-1].kind != "all_to_all":
            last = found.pop()
            axes, size = (*last.axes, *axes), max(last.bytes, size)
        if kind:
            found.append(_collective(kind, axes, size, direction, prefix + o.tensor.name, laid))
    yield from found


def _size(o: Operand, lies: Placements, laid: LaidOut) -> float:
    """Bytes of a rank's part; rows of experts are the same rows as before under another name, and the first dimension of theirs."""
    rows, names = o.tensor.dims[:1], ("copies", "expert_rows")
    mine = {a: Shard(rows[0].name) if isinstance(p, Shard) and p.dim in names else p for a, p in lies.items()}
    return laid.local(o.tensor, mine).bytes


def _statistics(
    op: Op, operands: tuple[Operand, ...], reduces: tuple[str, ...], laid: LaidOut, direction: str
) -> Iterator[Collective]:
    """What ranks that have parts of a reduced dimension tell each other: numbers per what is left."""
    if not reduces or not isinstance(op, Kernel):
        return
    names = {d.name for d in op.reduces}
    for name, numbers, element in _found(op, direction):
        rows = {d.name: d for o in operands if o.role == "input" for d in o.used_shape if d.name not in names}
        size = count(tuple(rows.values())) * numbers * element
        yield _collective("all_reduce", reduces, size, direction, name, laid)


def _found(op: Kernel, direction: str) -> list[tuple[str, int, float]]:
    """(name, numbers, bytes of each) of what a kernel finds over the dimensions that it reduces.

    A cross-entropy finds the maximum, the target's logit and the sum of exponentials; a norm its sums, in both directions; a softmax the
    maximum and the sum, and backward one sum; any other reduction what it makes.
    """
    if op.role == "loss":
        return [(name, 1, _STATISTIC) for name in ("maximum", "target", "sum")] if direction == "forward" else []
    if op.sums:
        return [("statistics", op.sums, _STATISTIC)]
    if any(d.name == r.name for d in op.outputs[0].dims for r in op.reduces):
        return (
            [("maximum", 1, _STATISTIC), ("sum", 1, _STATISTIC)] if direction == "forward" else [("sum", 1, _STATISTIC)]
        )
    return [(op.outputs[0].name, 1, op.outputs[0].element)] if direction == "forward" else []
