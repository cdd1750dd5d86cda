"""Collectives on an explicit fabric: flows of several groups share the links they cross, max-min fair.

Each group is a SimPy process that plays its algorithm round by round; a round starts all its flows at once and ends with
the last of them, one latency later.  Three shortcuts keep large groups quick, and the answer says which was taken:

* where no flows cross (groups on wires of their own, leaves not oversubscribed) the closed form is the answer;
* rounds of the same pattern are solved once and repeated, as long as all groups stay in step;
* a mix of flows that was seen before keeps its rates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.collectives import ALGORITHMS
from simulator.collectives.base import KINDS, Collective
from simulator.collectives.rounds import Leg, Pattern, Round, piped, turned
from simulator.engine.fair_rates import TOLERANCE, drain_seconds, fair_rates
from simulator.errors import PlanError, UnknownNameError
from simulator.hardware.fabric import GroupPlacement
from simulator.hardware.fabric_graph import FabricGraph, Flows, place_on_graph
from simulator.units import parse

__all__ = ["CHUNK", "MOST_CHUNKS", "SharedLinks", "SimulatedCollective", "crossing", "simulate_collective"]

CHUNK, MOST_CHUNKS = parse("512 KiB", "B"), 64
"""A pipelined message is cut into pieces of this size, but not into more of them than this."""

REMEMBERED = 4096
"""Mixes of flows whose rates are kept."""

Waits = Generator[simpy.Event, int, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCollective:
    """What groups need that run the same collective at the same time.

    Args:
        seconds: until the last group has ended [s].
        group_seconds: of each group [s].
        idle: of the slowest group alone on an idle fabric [s]: the closed form; by steps if the answer is by steps and
            the algorithm is pipelined, where the closed form takes every step for as long as one in full flow.
        method: "closed form" or "steps": where `seconds` comes from.
        reason: why, in words.
        rounds: that were played, of all groups together; 0 for the closed form.
        solved: mixes of flows whose rates were worked out; 0 for the closed form.
    """

    seconds: float
    group_seconds: tuple[float, ...]
    idle: float
    method: Literal["closed form", "steps"]
    reason: str
    rounds: int
    solved: int

    @property
    def slowdown(self) -> float:
        """How many times longer it takes than one group alone on an idle fabric."""
        return self.seconds / self.idle if self.idle > 0 else 1.0


def simulate_collective(
    kind: str,
    message: float,
    groups: Sequence[Sequence[int]],
    graph: FabricGraph,
    algorithm: str = "ring",
    method: Literal["auto", "steps", "closed form"] = "auto",
    chunks: int | None = None,
) -> SimulatedCollective:
    """Return how long a collective takes that all groups start at the same time.

    Args:
        kind: as in `collectives.KINDS`.
        message: the largest buffer of one rank [B].
        groups: world ranks of each group.
        graph: from `build_fabric_graph`.
        algorithm: a name of `collectives.ALGORITHMS` (not "auto": that choice is `collective_seconds`').
        method: "auto" = the closed form where no flows cross, else steps.
        chunks: pieces of a pipelined message; None = by `CHUNK`.

    Raises:
        UnknownNameError: no such kind, algorithm or method.
        PlanError: ranks twice or beyond the cluster, a group the algorithm cannot serve, a message below zero.
    """
    if kind not in KINDS:
        raise UnknownNameError("collective", kind, KINDS)
    if method not in ("auto", "steps", "closed form"):
        raise UnknownNameError("method", method, ("auto", "steps", "closed form"))
    member: Collective = ALGORITHMS.get(algorithm)
    ranks, places = _placed(kind, message, groups, graph, member, chunks)
    pieces = chunks or max(1, min(MOST_CHUNKS, math.ceil(message / CHUNK)))
    alone = [_closed_form(member, kind, message, place, graph, pieces) for place in places]
    reason = crossing(member, kind, ranks, places, graph)
    if method == "closed form" or (method == "auto" and not reason):
        return SimulatedCollective(
            seconds=max(alone),
            group_seconds=tuple(alone),
            idle=max(alone),
            method="closed form",
            reason=reason or "no flows cross",
            rounds=0,
            solved=0,
        )
    links = SharedLinks(graph)
    for held, place in zip(ranks, places, strict=True):
        links.add(held, _rounds(member.name, kind, place, pieces), message)
    ends = links.run()
    if kind in member.pipelined:
        alone = _alone(member, kind, message, dict(zip(places, ranks, strict=True)), graph.without_spine(), pieces)
    return SimulatedCollective(
        seconds=max(ends),
        group_seconds=ends,
        idle=max(alone),
        method="steps",
        reason=reason or "asked for",
        rounds=links.rounds,
        solved=links.solved,
    )


def crossing(
    member: Collective,
    kind: str,
    ranks: Sequence[NDArray[np.int64]],
    places: Sequence[GroupPlacement],
    graph: FabricGraph,
) -> str:
    """Return why the closed form is not enough, in words; "" where no flows cross."""
    cards: list[NDArray[np.int64]] = []
    for held, place in zip(ranks, places, strict=True):
        if place.nodes < 2:
            continue
        if place.ranks != place.nodes * place.ranks_per_node:
            return "a group lies unevenly on its nodes"
        domain, rail = graph.domain_of(held), graph.rail_of(held)
        if len(np.unique(domain * graph.rails + rail)) < len(held):
            return "ranks of one group share a network card"
        if not bool((rail.reshape(place.nodes, -1) == rail[: place.ranks_per_node]).all()):
            return "a group drives other rails in one node than in the next"
        if not graph.proxies and place.ranks_per_node > 1:
            return "without PXN flows change rails in the spine"
        if graph.oversubscription > 1 and len(np.unique(domain // graph.domains_per_pod)) > 1:
            return "a group crosses an oversubscribed spine"
        cards.append(domain * graph.rails + rail)
    if cards and len(np.unique(np.concatenate(cards))) < sum(map(len, cards)):
        return "groups share network cards"
    return ""


def _placed(
    kind: str,
    message: float,
    groups: Sequence[Sequence[int]],
    graph: FabricGraph,
    member: Collective,
    chunks: int | None,
) -> tuple[list[NDArray[np.int64]], list[GroupPlacement]]:
    """Return the groups' ranks in ascending order and where they lie, after checking that all can be done."""
    if not 0 <= message < math.inf or not groups or (chunks is not None and chunks < 1):
        raise PlanError(
            f"needed: a message that is finite and not below zero, at least one group, at least one chunk; got "
            f"{message} B, {len(groups)} groups and chunks = {chunks}"
        )
    ranks = [np.sort(np.asarray(group, np.int64)) for group in groups]
    places = [place_on_graph(graph, held) for held in ranks]
    together = np.concatenate(ranks)
    if len(np.unique(together)) < len(together):
        raise PlanError("groups that run at the same time must not share ranks: a rank is in one group of a kind")
    for place in places:
        if place.ranks > 1 and not member.works(kind, place):
            raise PlanError(
                f"algorithm {member.name!r} cannot do {kind} for {place.ranks} ranks on {place.nodes} node(s). It "
                f"knows {', '.join(member.kinds)}; ring works for most groups"
            )
        if member.endpoints(place) > place.ranks:
            raise PlanError(
                f"algorithm {member.name!r} needs machines without GPUs, which the graph of {graph.name!r} does not "
                f"have; its closed form is in collective_seconds"
            )
    return ranks, places


@functools.lru_cache(maxsize=256)
def _legs(algorithm: str, kind: str, place: GroupPlacement) -> tuple[Leg, ...]:
    found: tuple[Leg, ...] = ALGORITHMS.get(algorithm).legs(kind, place)
    return found


@functools.lru_cache(maxsize=16)
def _rounds(algorithm: str, kind: str, place: GroupPlacement, chunks: int) -> tuple[Round, ...]:
    """Return the rounds of one group; a ring's in copies that leave a node by all its cards."""
    member: Collective = ALGORITHMS.get(algorithm)
    if place.ranks < 2:
        return ()
    rounds = member.patterns(kind, place)
    if kind in member.rotates:
        rounds = tuple((turned(pattern, place), repeat) for pattern, repeat in rounds)
    return piped(rounds, chunks) if kind in member.pipelined else rounds


def _closed_form(
    member: Collective, kind: str, message: float, place: GroupPlacement, graph: FabricGraph, chunks: int
) -> float:
    """Return alpha per hop and the bytes of the busiest wire, leg by leg [s]; a pipeline fills once, chunk by chunk."""
    total = 0.0
    pipelined = kind in member.pipelined
    for leg in _legs(member.name, kind, place) if place.ranks > 1 else ():
        wire = leg.inner / graph.port_bandwidth
        if leg.outer:
            wire = max(wire, leg.outer / graph.card_bandwidth)
        alpha = graph.outer_latency if leg.outer else graph.inner_latency
        if pipelined:
            total += (leg.hops + chunks - 1) * (alpha + message * wire / chunks)
        else:
            total += leg.hops * alpha + message * wire
    return total


def _alone(
    member: Collective,
    kind: str,
    message: float,
    groups: dict[GroupPlacement, NDArray[np.int64]],
    graph: FabricGraph,
    chunks: int,
) -> list[float]:
    """Return the seconds of each kind of group when nobody else uses the links [s]."""
    out = []
    for place, held in groups.items():
        links = SharedLinks(graph)
        links.add(held, _rounds(member.name, kind, place, chunks), message)
        out += links.run()
    return out


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


class SharedLinks:
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
        for playing in self._playing:
            moved = playing.rate * elapsed
            playing.left = np.where(playing.left <= moved * (1 + TOLERANCE), 0.0, playing.left - moved)
        for playing in [p for p in self._playing if not p.left.any()]:
            self._playing.remove(playing)
            self._finish(playing, 1, playing.load.latency)
        if self._playing and not self._play_in_step():
            self._share()

    def _finish(self, playing: _Playing, rounds: int, delay: float) -> None:
        """End a round (or several that were played in step) after `delay` [s]."""
        self.rounds += rounds
        self.clock.timeout(delay).callbacks.append(lambda _: playing.done.succeed(rounds))

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
