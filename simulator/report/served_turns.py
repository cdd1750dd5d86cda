"""In what turns layers go to servers where the one goes first that is needed first: from a step in which they go as they are made.

made    4 3 2 1        wires free when 4 is there: 4; then 3 and 2 are there, and 2 is needed before 3: 4 2 ...
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from simulator.program.prices import Prices
from simulator.program.program import Link, Program
from simulator.program.trace import Trace

__all__ = ["in_turn", "served_turns"]

_STEP = 1
"""A step in the steady state, and with one after it."""


def in_turn(ready: Sequence[float], takes: Sequence[float], needed: Sequence[float]) -> tuple[int, ...]:
    """Return who goes after whom on wires that carry one at a time.

    Args:
        ready: when each may go [s].
        takes: how long each takes [s].
        needed: of those that are ready the smallest goes next.

    >>> in_turn([0.0, 1.0, 2.0, 3.0], [2.5, 1.0, 1.0, 1.0], [4, 3, 2, 1])
    (0, 2, 3, 1)
    """
    coming = sorted(range(len(ready)), key=lambda n: ready[n])
    waiting: list[tuple[float, int]] = []
    order: list[int] = []
    now, at = 0.0, 0
    while len(order) < len(ready):
        if not waiting:
            now = max(now, ready[coming[at]])
        while at < len(coming) and ready[coming[at]] <= now:
            heapq.heappush(waiting, (needed[coming[at]], coming[at]))
            at += 1
        _, number = heapq.heappop(waiting)
        order.append(number)
        now += takes[number]
    return tuple(order)


def served_turns(program: Program, prices: Prices, trace: Trace, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the turns of the layers of each of the first `ranks` ranks in a step."""
    served = np.array([isinstance(item, Link) and item.served is not None for item in program.items])
    waiting = np.repeat(np.arange(program.size), np.diff(program.after_offsets))
    needed, ready = np.full(program.size, np.inf), np.zeros(program.size)
    np.minimum.at(needed, program.after, trace.start[waiting])
    np.maximum.at(ready, waiting, trace.end[program.after])
    turns = []
    for rank in range(ranks):
        mine = np.flatnonzero(served[program.item] & (program.rank == rank) & (program.step == _STEP))
        takes = prices.occupancy[program.item[mine]]
        turns.append(in_turn(ready[mine].tolist(), takes.tolist(), needed[mine].tolist()))
    return tuple(turns)
