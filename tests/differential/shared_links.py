"""Collectives on an explicit fabric: flows of several groups share the links they cross, max-min fair.

Where no flows cross (groups on wires of their own, leaves not oversubscribed) the closed form is the answer; elsewhere
every group plays its algorithm round by round (`tests.differential.flow_clock`).  The answer says which, and why.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.collectives import ALGORITHMS
from simulator.collectives.base import KINDS, Collective
from simulator.collectives.crossing import reason_of
from simulator.collectives.rounds import Leg, Round, piped, turned
from simulator.errors import PlanError, UnknownNameError
from simulator.hardware.fabric_graph import FabricGraph
from simulator.hardware.group_placement import GroupPlacement
from simulator.units import parse
from tests.differential.flow_clock import FlowClock
from tests.fabric_graphs import place_on_graph, without_spine

__all__ = ["CHUNK", "MOST_CHUNKS", "SimulatedCollective", "simulate_collective"]

CHUNK, MOST_CHUNKS = parse("512 KiB", "B"), 64
"""A pipelined message is cut into pieces of this size, but not into more of them than this."""


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
    reason = reason_of(ranks, graph)
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
    links = FlowClock(graph)
    for held, place in zip(ranks, places, strict=True):
        links.add(held, _rounds(member.name, kind, place, pieces), message)
    ends = links.run()
    if kind in member.pipelined and not reason:
        alone = list(ends)
    elif kind in member.pipelined:
        alone = _alone(member, kind, message, dict(zip(places, ranks, strict=True)), without_spine(graph), pieces)
    return SimulatedCollective(
        seconds=max(ends),
        group_seconds=ends,
        idle=max(alone),
        method="steps",
        reason=reason or "asked for",
        rounds=links.rounds,
        solved=links.solved,
    )


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
                f"algorithm {member.name!r} needs machines without GPUs, which no graph has; "
                f"its closed form is in collective_seconds"
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
        wire = leg.inner / float(graph.bandwidth[0])
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
    out: list[float] = []
    for place, held in groups.items():
        links = FlowClock(graph)
        links.add(held, _rounds(member.name, kind, place, chunks), message)
        out += links.run()
    return out
