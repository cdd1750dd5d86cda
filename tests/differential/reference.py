"""A third opinion: the meaning of a program in plain Python, slow and without any structure; and wrong variants of it.

Each fault breaks one rule of the meaning.  The differential tests show that comparing two engines finds every one.
"""

from __future__ import annotations

import numpy as np

from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.trace import Trace

PLAIN_FAULTS = (
    "latency is forgotten",
    "latency holds the streams",
    "a row starts when its first stream is free",
    "a stream forgets its order",
    "only the first row of after counts",
    "a row lets go of all but its first stream at once",
)
FLUID_FAULTS = (
    "a row slows itself",
    "the factor of the start is kept",
    "only the first rank counts",
    "slowdowns multiply",
    "latency is slowed too",
)


def evaluate(program: Program, prices: Prices, fault: str = "") -> Trace:
    """Return the trace by going from instant to instant and looking at every row each time."""
    world = _World(program, prices, fault)
    while len(world.end) < program.size:
        while world.start_rows():
            pass
        if len(world.end) < program.size and not world.advance():
            break
    rows = range(program.size)
    start, end = ([column.get(row, -1.0) for row in rows] for column in (world.start, world.end))
    return Trace(start=np.array(start, float), end=np.array(end, float), engine="reference")


class _World:
    def __init__(self, program: Program, prices: Prices, fault: str) -> None:
        self.program, self.prices, self.fault, self.now = program, prices, fault, 0.0
        self.start: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.kept: dict[int, float] = {}
        bounds = zip(program.stream_offsets, program.stream_offsets[1:], strict=False)
        self.streams = [program.streams[low:high].tolist() for low, high in bounds]
        bounds = zip(program.after_offsets, program.after_offsets[1:], strict=False)
        self.after = [program.after[low:high].tolist() for low, high in bounds]
        self.latency = prices.latency[program.item].tolist()
        if fault == "latency is slowed too":
            self.latency = (prices.latency[program.item] * prices.slowdown.max()).tolist()

    def start_rows(self) -> bool:
        """Start all rows that may start now; say whether there were any."""
        ready = [row for row in range(self.program.size) if row not in self.start and self.may_start(row)]
        for row in ready:
            if not self.may_start(row):
                continue
            self.start[row] = self.now
            self.left[row] = float(self.prices.occupancy[self.program.item[row]])
            if self.left[row] == 0.0:
                self.finish(row)
        return bool(ready)

    def finish(self, row: int) -> None:
        del self.left[row]
        self.end[row] = self.now

    def may_start(self, row: int) -> bool:
        after = self.after[row][:1] if self.fault == "only the first row of after counts" else self.after[row]
        for other in after:
            wait = 0.0 if self.fault == "latency is forgotten" else self.latency[other]
            if other not in self.end or self.end[other] + wait > self.now:
                return False
        free = [self.is_free(stream, row) for stream in self.streams[row]]
        return any(free) if self.fault == "a row starts when its first stream is free" else all(free)

    def is_free(self, stream: int, row: int) -> bool:
        """Whether the row is first on this stream: all rows before it there have ended."""
        for other in range(self.program.size if self.fault == "a stream forgets its order" else row):
            if stream in self.streams[other] and other != row and self.holds(other, stream):
                return False
        return True

    def holds(self, row: int, stream: int) -> bool:
        """Whether a row that comes earlier on the stream still keeps others from it."""
        if self.fault == "a stream forgets its order":
            return row in self.left
        if self.fault == "a row lets go of all but its first stream at once" and stream != self.streams[row][0]:
            return row not in self.start
        late = self.latency[row] if self.fault == "latency holds the streams" else 0.0
        return row not in self.end or self.end[row] + late > self.now

    def advance(self) -> bool:
        """Go to the next end of a row or of a latency; say whether there is one."""
        factor = {row: self.factor(row) for row in self.left}
        ends = {row: self.now + self.left[row] * factor[row] for row in self.left}
        passing = [end + self.latency[row] for row, end in self.end.items()]
        instants = [*ends.values(), *(time for time in passing if time > self.now)]
        if not instants:
            return False
        later = min(instants)
        for row in list(self.left):
            self.left[row] -= (later - self.now) / factor[row]
        self.now = later
        for row, time in ends.items():
            if time == later:
                self.finish(row)
        return True

    def factor(self, row: int) -> float:
        """How many times longer the row takes now than alone."""
        if self.fault == "the factor of the start is kept" and row in self.kept:
            return self.kept[row]
        stream_rank = self.program.stream_rank
        ranks = [stream_rank[stream] for stream in self.streams[row]]
        factors = []
        for rank in ranks[:1] if self.fault == "only the first rank counts" else ranks:
            beside = set()
            for other in self.left:
                if rank in stream_rank[self.streams[other]] and (other != row or self.fault == "a row slows itself"):
                    beside |= set(np.flatnonzero(self.prices.share[self.program.item[other]] > 0.0).tolist())
            share, total = self.prices.share[self.program.item[row]], 0.0
            for kind in range(len(share)):
                slowdowns = [max(1.0, float(self.prices.slowdown[kind, other])) for other in beside] or [1.0]
                worst = np.prod(slowdowns) if self.fault == "slowdowns multiply" else max(slowdowns)
                total += share[kind] * worst
            factors.append(total + 1.0 - share.sum())
        self.kept[row] = max(factors)
        return self.kept[row]
