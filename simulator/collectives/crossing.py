"""What groups lose that use the same cards and switches at the same time: the steps of an algorithm on a topology.

    all groups of one kind, from a mesh --ranks--> routes on the fabric's graph --max-min fair--> seconds of a round
                                                                                         over those of the cards alone

Only where flows cross (`reason_of`) are steps looked at, and only their part between domains: rounds of the same
pattern are solved once and counted, and of more rounds than `MOST_ROUNDS` some are taken, evenly.  All groups play
their rounds in step; `tests/differential/shared_links.py` lets them drift apart on an event clock, to compare.
The answer is a factor on the bandwidth of the network, so that latencies, protocols and the choice among algorithms
stay those of `simulator.collectives`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.base import Collective
from simulator.collectives.rounds import Pattern, joined, legs_of, turned
from simulator.hardware.fabric import Fabric
from simulator.hardware.fabric_graph import FabricGraph, graph_of
from simulator.hardware.fair_rates import drain_seconds
from simulator.hardware.group_placement import GroupPlacement
from simulator.hardware.topology import Lattice

__all__ = ["MOST_ROUNDS", "Crossing", "Method", "crossing_of", "placed_alike", "placed_with_crossing", "reason_of"]

MOST_ROUNDS = 128
"""Rounds of different patterns that are solved; of an algorithm with more, every so many-th stands for its neighbours."""

Numbers = NDArray[np.int64]


class Method(NamedTuple):
    """How the time of a collective was found.

    Args:
        engine: a closed form, or the steps of the algorithm on the topology.
        why: in words; "" where there is no topology whose flows could cross.

    >>> str(Method("steps", "groups share network cards")), str(Method())
    ('steps: groups share network cards', 'closed form')
    """

    engine: Literal["closed form", "steps"] = "closed form"
    why: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What a group loses to others and to narrow switches.

    Args:
        factor: seconds between domains over those that its cards alone would need (>= 1 but for rounding).
        reason: why steps were looked at, in words; "" = no flows cross, so the closed form holds.
        solved: rounds that were worked out.
    """

    factor: float = 1.0
    reason: str = ""
    solved: int = 0


def placed_with_crossing(
    member: Collective, kind: str, place: GroupPlacement, fabric: Fabric
) -> tuple[GroupPlacement, Method]:
    """Return the placement with what crossing flows leave of its bandwidth, and how that was found."""
    if fabric.topology is None or place.lattice is None or place.nodes < 2:
        return place, Method()
    found = crossing_of(member, kind, place, fabric)
    placed = replace(place, crossing=found.factor)
    if not found.reason:
        return placed, Method(why="no flows cross")
    if not found.solved:
        return replace(place, crossing=0.0), Method(why=found.reason)
    lost = f"{found.factor:.3g} times the time of its own cards" if found.factor > 1.005 else "and loses nothing"
    return placed, Method("steps", f"{found.reason}, {lost}")


def placed_alike(place: GroupPlacement, fabric: Fabric) -> GroupPlacement:
    """Return the placement that stands for all of the same shape whose flows cross nowhere: their prices are the same, so one is made.

    >>> from simulator.hardware.cluster import load_cluster
    >>> from simulator.hardware.fabric import fabric_of
    >>> from simulator.hardware.group_placement import place_hop
    >>> fabric, axes = fabric_of(load_cluster("dgx_h100", 64)), (("tp", 8), ("pp", 8))
    >>> hops = [place_hop(axes, *ranks, fabric) for ranks in ((0, 1), (4, 5), (7, 6))]
    >>> len(set(hops)), len({placed_alike(hop, fabric) for hop in hops})
    (3, 1)
    """
    if fabric.topology is None or place.lattice is None or _reason_of(place.lattice, fabric):
        return place
    return _one(replace(place, lattice=_alike(place.lattice, fabric)))


@functools.lru_cache(maxsize=4096)
def _one(place: GroupPlacement) -> GroupPlacement:
    """The first of equal placements: as a key it is compared by identity."""
    return place


@functools.lru_cache(maxsize=4096)
def crossing_of(member: Collective, kind: str, place: GroupPlacement, fabric: Fabric) -> Crossing:
    """Return what the groups of a placement lose that run this algorithm at the same time on their fabric.

    Where the algorithm's transfers are not defined for the group, `solved` is 0 and `reason` says so.
    """
    if place.lattice is None:
        return Crossing()
    reason = _reason_of(place.lattice, fabric)
    if not reason:
        return Crossing()
    ranks = place.lattice.ranks()
    graph = graph_of(fabric, _world(ranks, fabric))
    if member.endpoints(place) > place.ranks or not member.works(kind, place) or ranks.shape[1] != place.ranks:
        return Crossing(reason=f"{reason}, but {member.name} has no steps for such a group")
    rounds, alone = _rounds(member, kind, place)
    own = place.fewest_per_node * max(fabric.network_bandwidth, fabric.card_bandwidth)
    card = min(own, fabric.network_bandwidth * fabric.domain_size) / place.fewest_per_node
    pipelined = kind in member.pipelined
    needed = sum(repeat * _seconds(pattern, ranks, graph, pipelined) for pattern, repeat in rounds)
    usual = alone / card
    return Crossing(factor=max(needed / usual, 1e-6) if usual else 1.0, reason=reason, solved=len(rounds))


@functools.lru_cache(maxsize=4096)
def _reason_of(lattice: Lattice, fabric: Fabric) -> str:
    """Return why the closed form is not enough for these groups; those that are like others are left out."""
    return _reason_within(_alike(lattice, fabric), fabric)


def _alike(lattice: Lattice, fabric: Fabric) -> Lattice:
    """Return a few groups that stand for all: a pod is like the next, and where spines are wide a domain is."""
    if fabric.topology is None:
        return lattice
    narrow = fabric.topology.oversubscription > 1
    return lattice.sample(fabric.domain_size * (fabric.topology.domains_per_pod if narrow else 1))


@functools.lru_cache(maxsize=4096)
def _reason_within(lattice: Lattice, fabric: Fabric) -> str:
    """As `_reason_of`, of these groups alone."""
    ranks = lattice.ranks()
    graph = graph_of(fabric, _world(ranks, fabric))
    return _reason(ranks.reshape(-1), np.repeat(np.arange(len(ranks)), ranks.shape[1]), graph)


def _reason(ranks: Numbers, group: Numbers, graph: FabricGraph) -> str:
    """Return why the closed form is not enough, in words; "" where no flows cross.

    Args:
        ranks: world ranks of all groups, ascending in each.
        group: [ranks] number of each rank's group, ascending.
        graph: the links.
    """
    domain = graph.domain_of(ranks)
    groups = int(group[-1]) + 1
    low, high = np.full(groups, graph.world_size), np.zeros(groups, np.int64)
    np.minimum.at(low, group, domain)
    np.maximum.at(high, group, domain)
    leaves = (low != high)[group]
    if not leaves.any() or not graph.rails:
        return ""
    ranks, group, domain = ranks[leaves], group[leaves], domain[leaves]
    rail = graph.rail_of(ranks)
    card = domain * graph.rails + rail
    places, where, held = np.unique(group * (domain.max() + 1) + domain, return_inverse=True, return_counts=True)
    owner = places // (domain.max() + 1)
    if _differs(held, owner, groups):
        return "a group lies unevenly on its nodes"
    if len(np.unique(group * (card.max() + 1) + card)) < len(card):
        return "ranks of one group share a network card"
    marks = np.random.default_rng(0).integers(1, 2**40, graph.rails)
    if _differs(np.bincount(where, marks[rail].astype(np.float64)), owner, groups):
        return "a group drives other rails in one node than in the next"
    if not graph.proxies and held.max() > 1:
        return "without PXN flows change rails in the spine"
    if graph.oversubscription > 1 and np.any(low // graph.domains_per_pod != high // graph.domains_per_pod):
        return "a group crosses an oversubscribed spine"
    if len(np.unique(card)) < len(card):
        return "groups share network cards"
    return ""


def _differs(value: NDArray[np.float64] | Numbers, owner: Numbers, groups: int) -> bool:
    """Return whether a group has places of different value."""
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, owner, value)
    np.maximum.at(high, owner, value)
    return bool(np.any(low < high))


def _world(ranks: Numbers, fabric: Fabric) -> int:
    """Return the GPUs of the domains up to the last that is named."""
    return int(-(-(int(ranks.max()) + 1) // fabric.domain_size) * fabric.domain_size)


def _rounds(member: Collective, kind: str, place: GroupPlacement) -> tuple[list[tuple[Pattern, float]], float]:
    """Return patterns with how often each counts, and the messages through one rank's share of the cards.

    A pipelined algorithm is one pattern: all its transfers at once, as in full flow.
    """
    rounds = member.patterns(kind, place)
    turns = kind in member.rotates
    if kind in member.pipelined:
        whole = joined([_scaled(pattern, repeat) for pattern, repeat in rounds])
        rounds = ((whole, 1),)
    step = -(-len(rounds) // MOST_ROUNDS)
    kept = rounds[step // 2 :: step]
    count = sum(repeat for _, repeat in rounds)
    share = count / sum(repeat for _, repeat in kept)
    legs = legs_of(kept, place, kind in member.pipelined, turns)
    usual = sum(leg.outer for leg in legs) * share
    return [(turned(pattern, place) if turns else pattern, repeat * share) for pattern, repeat in kept], usual


def _scaled(pattern: Pattern, times: float) -> Pattern:
    return pattern if times == 1 else replace(pattern, fraction=pattern.fraction * times)


def _seconds(pattern: Pattern, ranks: NDArray[np.int64], graph: FabricGraph, pipelined: bool) -> float:
    """Return the seconds of one round of all groups per byte of message, between domains only.

    Flows of a round run until the last has ended; those of a pipeline in full flow wait for each other chunk by chunk,
    so that the busiest link sets the pace.
    """
    groups, flows = len(ranks), len(pattern.fraction)
    shift = np.arange(groups)[:, None] * flows
    found = graph.routes(
        ranks[:, pattern.source].reshape(-1),
        (shift + pattern.source_flow).reshape(-1),
        ranks[:, pattern.destination].reshape(-1),
        (shift + pattern.destination_flow).reshape(-1),
        groups * flows,
    )
    outside = found.link >= graph.inner_links
    flow, link = found.flow[outside], found.link[outside]
    used, number = np.unique(flow, return_inverse=True)
    if not len(used):
        return 0.0
    size = np.tile(pattern.fraction, groups)[used]
    if pipelined:
        return float((np.bincount(link, size[number], len(graph.bandwidth)) / graph.bandwidth).max())
    return float(drain_seconds(graph.bandwidth, number, link, size).max())


def reason_of(held: Sequence[NDArray[np.int64]], graph: FabricGraph) -> str:
    """Return why the closed form is not enough for these groups (world ranks, ascending), in words; "" where it is."""
    group = np.repeat(np.arange(len(held)), [len(ranks) for ranks in held])
    return _reason(np.concatenate(held), group, graph)
