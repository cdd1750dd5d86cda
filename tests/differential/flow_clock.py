"""Groups that play rounds of flows on shared links, on one SimPy clock.

Each group is a process; a round starts all its flows at once and ends with the last of them, one latency later.  Two
shortcuts keep large groups quick: rounds of the same pattern are solved once and repeated, as long as all groups start
and end them together; and a mix of flows that was seen before keeps its rates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Generator, Sequence

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.collectives.rounds import Pattern, Round
from simulator.hardware.fabric_graph import FabricGraph, Flows
from simulator.hardware.fair_rates import TOLERANCE, drain_seconds, fair_rates

__all__ = ["FlowClock"]

REMEMBERED = 4096
"""Mixes of flows whose rates are kept."""

Waits = Generator[simpy.Event, int, None]


class _Load:
    """One pattern of one group, as flows on the graph's links."""

    __slots__ = ("flows", "latency", "routes", "size")

    def __init__(self, pattern: Pattern, ranks: NDArray[np.int64], message: float, graph: FabricGraph) -> None:
        self.size = pattern.fraction * message
        self.flows = len(self.size)
        self.routes: Flows = graph.routes(
            ranks[pattern.source],
            pattern.source_flow,
            ranks[pattern.destination],
            pattern.destination_flow,
            self.flows,
        )
        self.latency = float(self.routes.latency.max(initial=0.0))


class _Playing:
    """A round on its way: what its flows still have to carry, and the event of its end."""

    __slots__ = ("done", "fresh", "left", "load", "rate", "wanted")

    def __init__(self, load: _Load, wanted: int, done: simpy.Event) -> None:
        self.load, self.wanted, self.done = load, wanted, done
        self.left = load.size.copy()
        self.rate = np.zeros(load.flows)
        self.fresh = True


class FlowClock:
    """The links of a fabric and the groups that play their rounds on them, on one SimPy clock.

    `rounds` and `solved` count rounds played and mixes of flows whose rates were worked out.
    """

    def __init__(self, graph: FabricGraph) -> None:
        self.graph = graph
        self.clock = simpy.Environment()
        self.rounds = self.solved = 0
        self._ends: list[float] = []
        self._playing: list[_Playing] = []
        self._unfinished, self._since = 0, 0.0
        self._alarm: simpy.Event | None = None
        self._rates: dict[tuple[tuple[int, bytes], ...], list[NDArray[np.float64]]] = {}
        self._joint: dict[tuple[int, ...], float] = {}
        self._loads: list[_Load] = []

    def add(self, ranks: NDArray[np.int64], rounds: Sequence[Round], message: float) -> None:
        """Let a group play these rounds from time 0 on; rank i of the patterns is world rank ranks[i]."""
        self._ends.append(0.0)
        self._unfinished += 1
        self.clock.process(self._group(len(self._ends) - 1, ranks, rounds, message))

    def run(self) -> tuple[float, ...]:
        """Return when each group has ended [s]."""
        self.clock.run()
        return tuple(self._ends)

    def _group(self, number: int, ranks: NDArray[np.int64], rounds: Sequence[Round], message: float) -> Waits:
        """The life of one group: play its rounds in order, as many at once as the others allow."""
        loads: dict[int, _Load] = {}
        for pattern, repeat in rounds:
            load = loads.get(id(pattern)) or _Load(pattern, ranks, message, self.graph)
            loads[id(pattern)] = load
            self._loads.append(load)
            while repeat:
                repeat -= yield self._play(load, repeat)
        self._ends[number] = self.clock.now
        self._unfinished -= 1

    def _play(self, load: _Load, wanted: int) -> simpy.Event:
        """Start a round; the event of its end says how many rounds were played."""
        playing = _Playing(load, wanted, self.clock.event())
        self._playing.append(playing)
        self._ring_at(0.0)
        return playing.done

    def _ring_at(self, delay: float) -> None:
        """Look at the links again after `delay` [s]; an earlier alarm is void."""
        self._alarm = self.clock.timeout(delay)
        self._alarm.callbacks.append(self._settle)

    def _settle(self, alarm: simpy.Event) -> None:
        """Carry all flows to now, end those that are through, and give the others their rates."""
        if alarm is not self._alarm:
            return
        elapsed, self._since = self.clock.now - self._since, self.clock.now
        resolution = 4 * np.finfo(np.float64).eps * self.clock.now
        for playing in self._playing:
            playing.left = playing.left - playing.rate * elapsed
            rest = TOLERANCE * playing.load.size + resolution * playing.rate
            playing.left[playing.left <= rest] = 0.0
        for playing in [p for p in self._playing if not p.left.any()]:
            self._playing.remove(playing)
            self._finish(playing, 1, playing.load.latency)
        if self._playing and not self._play_in_step():
            self._share()

    def _finish(self, playing: _Playing, rounds: int, delay: float) -> None:
        """End a round (or several that were played in step) after `delay` [s]."""
        self.rounds += rounds
        self.clock.timeout(delay).callbacks.append(functools.partial(_end, playing, rounds))

    def _play_in_step(self) -> bool:
        """If all groups start a round now and would end it together, play as many such rounds as all have left."""
        if len(self._playing) < self._unfinished or not all(p.fresh for p in self._playing):
            return False
        key = tuple(id(p.load) for p in self._playing)
        if key not in self._joint:
            self._joint[key] = self._together()
        if math.isnan(self._joint[key]):
            return False
        times = min(p.wanted for p in self._playing)
        for playing in self._playing:
            self._finish(playing, times, times * self._joint[key])
        self._playing = []
        return True

    def _together(self) -> float:
        """Return the seconds of one round of all groups, NaN unless they end together."""
        self.solved += 1
        flow, link = self._columns([np.arange(p.load.flows) for p in self._playing])
        end = drain_seconds(self.graph.bandwidth, flow, link, np.concatenate([p.load.size for p in self._playing]))
        edges = np.cumsum([0, *(p.load.flows for p in self._playing)])
        ends = [
            float(end[low:high].max(initial=0.0)) + p.load.latency
            for p, low, high in zip(self._playing, edges[:-1], edges[1:], strict=True)
        ]
        return max(ends) if max(ends) - min(ends) <= TOLERANCE * max(ends) else math.nan

    def _share(self) -> None:
        """Give every flow its fair rate, and look again when the first of them is through."""
        kept = [np.flatnonzero(p.left) for p in self._playing]
        key = tuple((id(p.load), flows.tobytes()) for p, flows in zip(self._playing, kept, strict=True))
        if key not in self._rates:
            self.solved += 1
            if len(self._rates) >= REMEMBERED:
                self._rates.clear()
            flow, link = self._columns(kept)
            sizes = [len(flows) for flows in kept]
            rate = fair_rates(self.graph.bandwidth, flow, link, sum(sizes))
            self._rates[key] = np.split(rate, np.cumsum(sizes)[:-1])
        first = math.inf
        for playing, flows, rate in zip(self._playing, kept, self._rates[key], strict=True):
            playing.fresh = False
            playing.rate = np.zeros(playing.load.flows)
            playing.rate[flows] = rate
            first = min(first, float((playing.left[flows] / rate).min()))
        self._ring_at(first)

    def _columns(self, kept: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (flow, link) of the flows kept of each round, numbered one after another."""
        flow, link, start = [], [], 0
        for playing, flows in zip(self._playing, kept, strict=True):
            number = np.full(playing.load.flows, -1)
            number[flows] = start + np.arange(len(flows))
            found = number[playing.load.routes.flow]
            flow.append(found[found >= 0])
            link.append(playing.load.routes.link[found >= 0])
            start += len(flows)
        return np.concatenate(flow), np.concatenate(link)


def _end(playing: _Playing, rounds: int, _: simpy.Event) -> None:
    playing.done.succeed(rounds)
