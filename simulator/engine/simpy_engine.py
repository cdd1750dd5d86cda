"""The readable truth: every stream is a SimPy process that runs its rows in order.

* A row starts when it is first on all its streams and every row of its `after` list has ended and its latency has
  passed.  The stream that comes to the row last runs it; the others wait for its end.
* It ends `occupancy` later, for all its streams at once.  Latency holds no stream.
* Rows that run beside each other on one rank slow each other (`Interference`), if the prices say so.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator

import numpy as np
import simpy

from simulator.errors import DeadlockError
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.spec import check_runnable, find_deadlock
from simulator.program.trace import Trace

__all__ = ["run_simpy"]

Waits = Generator[simpy.Event, None, None]


def run_simpy(program: Program, prices: Prices) -> Trace:
    """Return start and end [s] of every row, by discrete-event simulation.

    Raises:
        ProgramError: an index out of range, or prices that do not fit the program.
        DeadlockError: rows are left that wait for each other; the message names the ring.
    """
    check_runnable(program, prices.occupancy, prices.latency)
    step = _Step(program, prices)
    step.clock.run()
    if None in step.end:
        raise DeadlockError(find_deadlock(program))
    return Trace(start=np.array(step.start, np.float64), end=np.array(step.end, np.float64), engine="simpy")


class _Step:
    """One training step as it runs: the clock, the streams and what each row waits for."""

    def __init__(self, program: Program, prices: Prices) -> None:
        self.clock = simpy.Environment()
        self.start: list[float | None] = [None] * program.size
        self.end: list[float | None] = [None] * program.size
        self.streams_of = _lists(program.streams, program.stream_offsets)
        self.after = _lists(program.after, program.after_offsets)
        self.occupancy = prices.occupancy[program.item].tolist()
        self.latency = prices.latency[program.item].tolist()
        self.absent = [len(streams) for streams in self.streams_of]
        """Per row: on how many of its streams it is not yet first."""
        self.passed = [False] * program.size
        """Per row: has it ended, and has its latency passed?"""
        self.ended: dict[int, simpy.Event] = {}
        self.arrived: dict[int, simpy.Event] = {}
        self.interference = Interference(self.clock, program, prices) if prices.interferes else None
        rows_of: list[list[int]] = [[] for _ in program.stream_rank]
        for row, streams in enumerate(self.streams_of):
            for stream in streams:
                rows_of[stream].append(row)
        for rows in rows_of:
            self.clock.process(self.stream(rows))

    def stream(self, rows: list[int]) -> Waits:
        """The life of one stream: run its rows in order."""
        for row in rows:
            self.absent[row] -= 1
            if self.absent[row]:
                yield self.event(self.ended, row)
                continue
            for other in self.after[row]:
                if not self.passed[other]:
                    yield self.event(self.arrived, other)
            self.start[row] = self.clock.now
            if self.occupancy[row] > 0.0:
                if self.interference:
                    yield self.interference.begin(row, self.occupancy[row])
                    self.interference.finish(row)
                else:
                    yield self.clock.timeout(self.occupancy[row])
            self.finish(row)

    def finish(self, row: int) -> None:
        """Release the row's other streams now, and those who wait for it in `after` when its latency has passed."""
        self.end[row] = self.clock.now
        if row in self.ended:
            self.ended.pop(row).succeed()
        if self.latency[row] > 0.0:
            self.clock.timeout(self.latency[row]).callbacks.append(lambda _: self.arrive(row))
        else:
            self.arrive(row)

    def arrive(self, row: int) -> None:
        self.passed[row] = True
        if row in self.arrived:
            self.arrived.pop(row).succeed()

    def event(self, events: dict[int, simpy.Event], row: int) -> simpy.Event:
        """Return the event of a row, made when the first one wants to wait for it."""
        if row not in events:
            events[row] = self.clock.event()
        return events[row]


class _Running:
    """A row that runs: the seconds it would still need alone, as of `since`, and how many times longer it takes now."""

    __slots__ = ("alarm", "done", "factor", "left", "since")

    def __init__(self, left: float, since: float, done: simpy.Event) -> None:
        self.left, self.since, self.done = left, since, done
        self.factor = 0.0
        self.alarm: simpy.Event | None = None


class Interference:
    """Rows that run at one time on one rank slow each other, like fluids in one pipe.

    A row takes `1 + sum over kinds of share x (slowdown - 1)` times as long while, for each kind of its own work,
    `slowdown` is the worst that any kind at work on the rank's other streams does to it; over several ranks the slowest
    counts.  The factor changes only when a row of such a rank starts or ends; the work that is left carries over.
    """

    def __init__(self, clock: simpy.Environment, program: Program, prices: Prices) -> None:
        self.clock = clock
        self.item, self.share, self.slowdown = program.item.tolist(), prices.share.tolist(), prices.slowdown.tolist()
        self.kinds = [[k for k, part in enumerate(shares) if part > 0.0] for shares in self.share]
        streams = _lists(program.streams, program.stream_offsets)
        self.ranks_of = [sorted({int(program.stream_rank[s]) for s in held}) for held in streams]
        self.on_rank: list[list[int]] = [[] for _ in range(program.ranks)]
        """Per rank: the rows that run there now."""
        self.running: dict[int, _Running] = {}

    def begin(self, row: int, seconds: float) -> simpy.Event:
        """Start a row that takes `seconds` when alone; return the event of its end."""
        self.running[row] = _Running(seconds, self.clock.now, self.clock.event())
        for rank in self.ranks_of[row]:
            self.on_rank[rank].append(row)
        self.settle(self.ranks_of[row])
        return self.running[row].done

    def finish(self, row: int) -> None:
        """Take a row away that has ended."""
        del self.running[row]
        for rank in self.ranks_of[row]:
            self.on_rank[rank].remove(row)
        self.settle(self.ranks_of[row])

    def settle(self, ranks: list[int]) -> None:
        """Give every row that runs on these ranks its new factor and, if that changed, its new end."""
        for row in sorted({row for rank in ranks for row in self.on_rank[rank]}):
            state, factor = self.running[row], max(self.factor(row, rank) for rank in self.ranks_of[row])
            if factor != state.factor:
                if state.factor:
                    state.left = max(0.0, state.left - (self.clock.now - state.since) / state.factor)
                state.since, state.factor = self.clock.now, factor
                state.alarm = self.clock.timeout(state.left * factor)
                state.alarm.callbacks.append(functools.partial(self.ring, state))

    def factor(self, row: int, rank: int) -> float:
        """How many times longer the row takes on this rank, beside all that runs on the rank's other streams now."""
        beside = {kind for other in self.on_rank[rank] if other != row for kind in self.kinds[self.item[other]]}
        total, item = 1.0, self.item[row]
        for kind in self.kinds[item]:
            worst = max((self.slowdown[kind][other] for other in beside), default=1.0)
            total += self.share[item][kind] * (max(1.0, worst) - 1.0)
        return total

    def ring(self, state: _Running, alarm: simpy.Event) -> None:
        """End the row, unless the alarm was set before the factor changed again."""
        if state.alarm is alarm and not state.done.triggered:
            state.done.succeed()


def _lists(values: np.ndarray, offsets: np.ndarray) -> list[list[int]]:
    flat, edges = values.tolist(), offsets.tolist()
    return [flat[low:high] for low, high in itertools.pairwise(edges)]
