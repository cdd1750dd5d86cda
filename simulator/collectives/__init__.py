"""How long a collective takes on a cluster, by which algorithm and protocol, and how sure that is.

    kind, message, placement, cluster --> the algorithms to choose from, with their protocols --> the quickest of them

To choose from are the one that the call names, else those that the cluster's file names for the kind, else those that
libraries of today choose among (`Collective.automatic`).

Each algorithm is one file: its closed form, its transfers, its cost by NCCL's model.  Fitted multipliers correct the
cost where a platform was measured; `sigma` is what such predictions miss on another machine of that platform, on the
very machine where the cluster names the profile of its own logs, else on machines that nobody measured.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from simulator.collectives.base import KINDS, PRIOR, PROTOCOLS, Collective, Cost
from simulator.collectives.byteps import ServedCollective
from simulator.collectives.crossing import Method, placed_with_crossing
from simulator.errors import PlanError, SpecError, UnknownNameError
from simulator.hardware.coefficients import (
    Pair,
    PairName,
    Profile,
    find_profile,
    library_of,
    load_cost_table,
    pooled_profile,
)
from simulator.hardware.fabric import Fabric, fabric_of
from simulator.hardware.group_placement import GroupPlacement
from simulator.program.prices import PriceClass
from simulator.registry import Family

if TYPE_CHECKING:
    from simulator.hardware.cluster import Cluster

__all__ = [
    "ALGORITHMS",
    "PRIOR",
    "SHARED_OUT",
    "Candidate",
    "CollectiveTime",
    "bus_factor",
    "candidates",
    "collective_seconds",
    "competitors",
    "level_of",
    "profile_of",
    "with_servers",
]


ALGORITHMS: Family[Collective] = Family("collective algorithm", "simulator.collectives", "Collective", "algorithms")
"""All algorithms by name; which of them compete, `competitors` says."""


@functools.lru_cache(maxsize=256)
def with_servers(algorithm: str, servers: int, moved: float = 0.0, each: bool = False) -> Collective:
    """Return the algorithm with this name and so many servers, in place of as many as it asks for.

    Args:
        moved, each: as of `ServedCollective`.

    Raises:
        UnknownNameError: nobody bears the name.
        PlanError: the algorithm has no servers, or not so many.

    >>> with_servers("byteps", 4).name
    'byteps'
    """
    served = [each.name for each in ALGORITHMS if isinstance(each, ServedCollective)]
    member = None if algorithm == "auto" else ALGORITHMS.get(algorithm)
    if not isinstance(member, ServedCollective):
        raise PlanError(
            f"servers help {', '.join(served[:-1])} and {served[-1]}, but the algorithm is {algorithm!r}. Way out: one of these"
        )
    return type(member)(servers, moved, each)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """The time of one collective.

    Args:
        seconds: [s].
        algorithm: the one chosen or asked for.
        protocol: ll, ll128 or simple.
        sigma: standard deviation of log(measured / predicted) of its class.
        calibrated: whether logs of this platform stand behind it.
        price_class: kind, algorithm and level.
        profile: the name of the profile used.
        method: how the time was found.
    """

    seconds: float
    algorithm: str
    protocol: str
    sigma: float
    calibrated: bool
    price_class: PriceClass
    profile: str
    method: Method = Method()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One algorithm and protocol on given wires, multipliers applied: latency [s], bandwidth [B/s], ramp [1].

    `method` says whether steps on the topology were looked at.
    """

    algorithm: str
    protocol: str
    latency: float
    bandwidth: float
    ramp: float
    medium: tuple[float, ...]
    method: Method = Method()

    def seconds(self, message: float) -> float:
        """Return the seconds of one message [B]: the scalar twin of `Collective.seconds`."""
        wire = message / self.bandwidth
        if self.medium:
            wire /= _between(self.medium, math.log2(max(message, 1.0) / 64.0))
        return self.latency + wire + self.ramp * math.sqrt(self.latency * wire)


def collective_seconds(
    kind: str,
    message: float,
    place: GroupPlacement,
    cluster: Cluster | Fabric,
    algorithm: str | Collective = "auto",
    protocol: str = "auto",
) -> CollectiveTime:
    """Return the seconds of a collective: the quickest of those to choose from, or what is asked for.

    Args:
        kind: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send_recv, gather or scatter.
        message: the largest buffer of one rank [B]: of all_gather the whole result, of reduce_scatter the whole input
            (both n x shard), of all_reduce and all_to_all the buffer, of send_recv what one rank sends.
        place: from `place_group`, `place_hop` or `describe_group`.
        cluster: the cluster, or its wires from `fabric_of`.
        algorithm: a name, "auto": the cluster's own choice, or one `with_servers`.
        protocol: ll, ll128, simple or "auto".

    Raises:
        UnknownNameError: no such kind, algorithm or protocol.
        PlanError: the algorithm cannot do this here; a group leaves the node of a cluster without network.
        SpecError: as `competitors`.
    """
    fabric = cluster if isinstance(cluster, Fabric) else fabric_of(cluster)
    return _price(kind, float(message), place, fabric, algorithm, protocol)


@functools.lru_cache(maxsize=65536)
def _price(
    kind: str, message: float, place: GroupPlacement, fabric: Fabric, algorithm: str | Collective, protocol: str
) -> CollectiveTime:
    if not 0 <= message < math.inf:
        raise PlanError(f"a message must be a finite number of bytes, not below zero, but {kind} has {message}")
    offered = candidates(kind, place, fabric, algorithm, protocol)
    profile = profile_of(fabric, place)
    if place.ranks < 2:
        return CollectiveTime(
            seconds=0.0,
            algorithm="none",
            protocol="simple",
            sigma=profile.everything.sigma,
            calibrated=profile.calibrated,
            price_class=PriceClass(kind, "none", place.level),
            profile=profile.name,
        )
    taken = [candidate.seconds(message) for candidate in offered]
    best = offered[taken.index(min(taken))]
    measured = profile.calibrated and profile.holds(PairName(best.algorithm, best.protocol))
    return CollectiveTime(
        seconds=min(taken),
        algorithm=best.algorithm,
        protocol=best.protocol,
        sigma=_sigma(kind, message, place, fabric, best, profile),
        calibrated=measured,
        price_class=PriceClass(kind, best.algorithm, place.level),
        profile=profile.name,
        method=best.method,
    )


def _sigma(
    kind: str, message: float, place: GroupPlacement, fabric: Fabric, best: Candidate, profile: Profile
) -> float:
    """Return the spread of a prediction: of the machine itself where the cluster names the profile made of its logs,
    of machines of its kind where those measured such collectives or their kin, else at least of machines that nobody measured."""
    sigma = profile.residual(kind, best.algorithm, message).sigma
    if not profile.measured(kind, best.algorithm, best.protocol, message):
        kin = profile.kin_sigma(kind, best.algorithm, best.protocol, message)
        if kin is not None:
            return kin
        least = load_cost_table().between_hosts if not fabric.peer_to_peer and place.ranks_per_node > 1 else 0.0
        return max(sigma, least, _pooled(fabric, place).residual(kind, best.algorithm, message).sigma)
    here = profile.one_machine and profile.name in fabric.calibration
    own = profile.own_sigma(kind, message, place) if here else None
    return sigma if own is None else own


@functools.lru_cache(maxsize=1024)
def competitors(kind: str, algorithms: tuple[tuple[str, tuple[str, ...]], ...] = ()) -> tuple[Collective, ...]:
    """Return the algorithms to choose from where a call names none.

    Args:
        kind: the collective.
        algorithms: (kind, names) that a cluster states (`Fabric.algorithms`); of other kinds the automatic ones compete.

    Raises:
        SpecError: a kind or name of the cluster is unknown, or an algorithm does not do the kind it is named for.

    >>> [member.name for member in competitors("all_gather")]
    ['pat', 'ring']
    >>> [member.name for member in competitors("all_gather", (("all_gather", ("bruck", "ring")),))]
    ['bruck', 'ring']
    """
    named = {}
    for wanted, names in algorithms:
        try:
            if wanted not in KINDS:
                raise UnknownNameError("collective", wanted, KINDS)
            named[wanted] = tuple(ALGORITHMS.get(name) for name in names)
        except UnknownNameError as error:
            raise SpecError(f"algorithms.{wanted} of the cluster: {error}") from None
        unable = [member.name for member in named[wanted] if wanted not in member.kinds]
        if unable or not names:
            raise SpecError(
                f"algorithms.{wanted} of the cluster names at least one, and such as do {wanted}: got {list(names)}. "
                f"These do: {', '.join(_able(wanted))}; without the key those of today's libraries compete"
            )
    return named.get(kind, tuple(member for member in ALGORITHMS if member.automatic and kind in member.kinds))


def _able(kind: str) -> list[str]:
    return sorted(member.name for member in ALGORITHMS if kind in member.kinds)


@functools.lru_cache(maxsize=8192)
def candidates(
    kind: str, place: GroupPlacement, fabric: Fabric, algorithm: str | Collective = "auto", protocol: str = "auto"
) -> tuple[Candidate, ...]:
    """Return all there is to choose from for a collective on these wires, or the algorithm or protocol that is asked for.

    What a network's plugin does not offer is left out, unless the call or the cluster names it.

    Raises: as `collective_seconds`.
    """
    if kind not in KINDS:
        raise UnknownNameError("collective", kind, KINDS)
    if protocol != "auto" and protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    if algorithm == "auto":
        chosen = competitors(kind, fabric.algorithms)
    else:
        chosen = (ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else algorithm,)
    named = algorithm != "auto" or kind in dict(fabric.algorithms)
    if place.ranks < 2:
        return ()
    _check_wires(kind, place, fabric)
    table, profile = load_cost_table(), profile_of(fabric, place)
    pooled = _pooled(fabric, place)
    if profile.host_rate is not None:
        fabric = fabric.through_host(profile.host_rate)
    if place.nodes > 1:
        fabric = replace(fabric, network_latency=fabric.network_latency + profile.hop(fabric.network))
    found = []
    for member in chosen:
        names = [name for name in member.protocols if kind in member.kinds and protocol in ("auto", name)]
        if place.nodes > 1 and not named:
            names = [name for name in names if protocol == name or table.offers(fabric.network, member.name, name)]
        if profile.offers:
            names = [name for name in names if PairName(member.name, name) in profile.offers]
        if not any(member.cost(kind, place, fabric, table, name) for name in names):
            continue
        placed, method = placed_with_crossing(member, kind, place, fabric)
        for name in names:
            cost = member.cost(kind, placed, fabric, table, name)
            if cost is not None:
                found.append(_tuned(member, name, cost, profile, pooled, method))
    if not found:
        wanted, way_out = algorithm if isinstance(algorithm, str) else algorithm.name, "leave both on auto"
        if algorithm == "auto" and named:
            wanted = " or ".join(member.name for member in chosen)
            way_out = f"name more in algorithms.{kind} of the cluster"
        raise PlanError(
            f"there is no {kind} with algorithm {wanted!r} and protocol {protocol!r} for {place.ranks} ranks on "
            f"{place.nodes} node(s) of {fabric.architecture} GPUs over {fabric.intra or fabric.network}. Algorithms "
            f"that know {kind}: {', '.join(_able(kind))}; or {way_out}"
        )
    return tuple(found)


def profile_of(fabric: Fabric, place: GroupPlacement) -> Profile:
    """Return the profile that speaks for a group: by whether it leaves its domain."""
    return find_profile(fabric, level_of(place))


def _pooled(fabric: Fabric, place: GroupPlacement) -> Profile:
    level = level_of(place)
    return pooled_profile(level, library_of(fabric.architecture, level))


def level_of(place: GroupPlacement) -> Literal["node", "fabric"]:
    """Return which profiles speak for a group: "fabric" when it leaves its domain (a node, or a rack on one link)."""
    return "fabric" if place.nodes > 1 else "node"


SHARED_OUT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Kinds of which a rank keeps its own n-th."""


def bus_factor(kind: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth as nccl-tests defines it.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("send_recv", 2)
    (1.75, 0.875, 1.0)
    """
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in SHARED_OUT else 1.0


def _tuned(
    member: Collective, protocol: str, cost: Cost, profile: Profile, pooled: Profile, method: Method
) -> Candidate:
    """Return the cost with its multipliers: the platform's, else those of all platforms, else none."""
    name = PairName(member.name, protocol)
    pair: Pair = profile.pairs.get(name) or pooled.pairs.get(name, PRIOR)
    common = PRIOR if name in profile.pairs else profile.others
    return Candidate(
        algorithm=member.name,
        protocol=protocol,
        latency=cost.latency * pair.latency * common.latency,
        bandwidth=min(cost.bandwidth * pair.bandwidth * common.bandwidth, cost.ceiling),
        ramp=pair.ramp + cost.ramp,
        medium=cost.medium,
        method=method,
    )


def _check_wires(kind: str, place: GroupPlacement, fabric: Fabric) -> None:
    if place.nodes > 1 and not fabric.network:
        raise PlanError(
            f"{kind} over {place.ranks} ranks leaves the node, but the cluster has no network between its nodes. "
            f"Use at most {fabric.domain_size} ranks, or a cluster with a network_link"
        )
    if place.ranks_per_node > max(fabric.domain_size, 1):
        raise PlanError(
            f"{kind} has {place.ranks_per_node} ranks in one node, but the nodes have {fabric.domain_size} GPUs. "
            f"Use more nodes"
        )


def _between(factors: tuple[float, ...], at: float) -> float:
    """Return the factor at a fractional place, the ends beyond them."""
    if at <= 0:
        return factors[0]
    low = int(at)
    if low >= len(factors) - 1:
        return factors[-1]
    return factors[low] + (at - low) * (factors[low + 1] - factors[low])
