"""Whether an order can run at all: who waits for which action of whom when it cannot.

No times are needed: an action can run when all before it on its rank have run, and the same part of its microbatch has
passed the neighbour chunk.  Transfers never block, as every rank posts its receives ahead.
"""

from __future__ import annotations

import numpy as np

from simulator.errors import DeadlockError
from simulator.schedules.action import cell_text
from simulator.schedules.order import PipelineOrder

__all__ = ["check_order_runs"]

_Atom = tuple[bool, int, int]
"""(whether forward, chunk, which smallest part of which microbatch)"""


def check_order_runs(order: PipelineOrder) -> None:
    """Check that every action of an order gets its turn; the order has passed `check_order`.

    Raises:
        DeadlockError: ranks wait for each other; the message names each action of the ring and what it waits for.

    >>> check_order_runs(PipelineOrder.parse("0F0,0B0,0F1,0B1\\n1F1,1B1,1F0,1B0"))
    Traceback (most recent call last):
    simulator.errors.DeadlockError: the order deadlocks (7 of 8 actions never run): rank 0 waits in 0B0 for 1B0 of rank 1; \
rank 1 waits in 1F1 for 0F1 of rank 0. Let one of the awaited actions come earlier in the line of its rank
    """
    walk = _Walk(order)
    stuck = walk.run()
    if not stuck:
        return
    rank, path = next(iter(stuck)), []
    while rank not in path:
        path.append(rank)
        rank = int(walk.rank[walk.awaited(stuck[rank])[1]])
    ring = path[path.index(rank) :]
    low = ring.index(min(ring))
    told = [_tell_wait(walk, stuck[rank]) for rank in ring[low:] + ring[:low]]
    more = [f"... {len(told) - 12} more ..."] if len(told) > 12 else []
    left = sum(int(order.rank_offsets[rank + 1]) - first for rank, first in stuck.items())
    raise DeadlockError(
        f"the order deadlocks ({left} of {order.size} actions never run): "
        f"{'; '.join([*told[:11], *more, *told[11:][-1:]])}. "
        "Let one of the awaited actions come earlier in the line of its rank"
    )


def _tell_wait(walk: _Walk, first: int) -> str:
    waiting, awaited = walk.awaited(first)
    rank, other = int(walk.rank[waiting]), int(walk.rank[awaited])
    where = walk.text(waiting, fused=True)
    if rank != other:
        return f"rank {rank} waits in {where} for {walk.text(awaited)} of rank {other}"
    return f"rank {rank} waits in {where} for its own {walk.text(awaited)}, which stands behind it"


class _Walk:
    """An order being run without times, cell by cell."""

    def __init__(self, order: PipelineOrder) -> None:
        self.order, self.rank = order, order.rank
        self.kind, self.chunk = order.kind.tolist(), order.chunk.tolist()
        self.last = int(order.chunk.max())
        grain = int(np.lcm.reduce(np.unique(order.parts).astype(np.int64)))
        each = order.count.astype(np.int64) * (grain // order.parts)
        start = order.microbatch.astype(np.int64) * grain + order.part.astype(np.int64) * (grain // order.parts)
        self.atoms = list(zip(start.tolist(), (start + each).tolist(), strict=True))
        self.pair = order.pair.tolist()
        self.done: set[_Atom] = set()

    def run(self) -> dict[int, int]:
        """Run what can run; return, per rank that is left, its first action that cannot."""
        at, end = self.order.rank_offsets[:-1].tolist(), self.order.rank_offsets[1:].tolist()
        waiting, moved = list(range(len(at))), True
        while moved and waiting:
            moved = False
            for rank in waiting:
                here = at[rank]
                while here < end[rank] and all(not self.missing(n) for n in self.cell(here)):
                    for n in self.cell(here):
                        self.finish(n)
                    here += len(self.cell(here))
                moved, at[rank] = moved or here > at[rank], here
            waiting = [rank for rank in waiting if at[rank] < end[rank]]
        return {rank: at[rank] for rank in waiting}

    def cell(self, first: int) -> tuple[int, ...]:
        """The actions that start with this one as one operation."""
        return (first, first + 1) if self.pair[first] == first + 1 else (first,)

    def missing(self, n: int) -> list[_Atom]:
        """What the action still waits for."""
        kind, chunk = self.kind[n], self.chunk[n]
        forward = kind == 0
        if kind == 3 or chunk == (0 if forward else self.last):
            return []
        before = chunk - 1 if forward else chunk + 1
        return [atom for k in range(*self.atoms[n]) if (atom := (forward, before, k)) not in self.done]

    def finish(self, n: int) -> None:
        """Note what the action has done."""
        if self.kind[n] != 3:
            self.done.update((self.kind[n] == 0, self.chunk[n], k) for k in range(*self.atoms[n]))

    def awaited(self, first: int) -> tuple[int, int]:
        """Return (the action of this operation that waits, the action that it waits for)."""
        waiting = next(n for n in self.cell(first) if self.missing(n))
        forward, chunk, atom = self.missing(waiting)[0]
        kinds = (0,) if forward else (1, 2)
        for n, (low, high) in enumerate(self.atoms):
            if self.chunk[n] == chunk and self.kind[n] in kinds and low <= atom < high:
                return waiting, n
        raise DeadlockError(f"{self.text(waiting)} waits for an action of chunk {chunk} that the order lacks; add it")

    def text(self, n: int, fused: bool = False) -> str:
        """Return the text of an action; `fused`: with its partner."""
        if fused and self.pair[n] >= 0:
            low = min(n, self.pair[n])
            return cell_text((self.order.action(low), self.order.action(low + 1)))
        return str(self.order.action(n))
