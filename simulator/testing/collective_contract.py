"""What every collective algorithm must keep, whoever wrote it.

The phases are run on paper: each rank holds parts of the message, each part with the set of ranks that contributed to
it.  In the end every rank must hold what the collective promises.  Then the same steps are timed on idle wires and
compared with the closed form.  A test class derives from `CollectiveContract` and is run over all members of the
family.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from simulator.collectives import ALGORITHMS
from simulator.collectives.base import KINDS, PROTOCOLS, Collective, Leg, Pattern, Phase, Transfer
from simulator.collectives.rounds import legs_of, pattern_of
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement, describe_group
from simulator.testing import require

__all__ = ["CollectiveContract", "contributions", "step_seconds"]

Held = dict[int, dict[int, frozenset[int]]]
GROUPS = tuple(describe_group(n, k) for n, k in ((2, 1), (4, 1), (8, 1), (16, 2), (12, 3), (32, 4), (40, 5), (28, 7)))
BANDWIDTH, ALPHA = 1.0, 1.0


class CollectiveContract:
    """Checks for one algorithm; `cases` lists what it is asked to do."""

    @staticmethod
    def cases(member: Collective) -> list[tuple[str, GroupPlacement]]:
        """Return the (kind, group) that the algorithm works for: send_recv joins two ranks.

        Raises:
            AssertionError: kinds or protocols are not those that are known, or it has no source.
        """
        for field, known in (("kinds", KINDS), ("protocols", PROTOCOLS)):
            named = getattr(member, field)
            require(
                bool(named) and not isinstance(named, str), f"{member.name}: {field} is a tuple of words, not {named!r}"
            )
            unknown = sorted(set(named) - set(known))
            require(not unknown, f"{member.name}: {field}: {unknown} is not among {', '.join(known)}")
        require(bool(getattr(member, "source", "")), f"{member.name}: no source")
        pairs = [(kind, g) for kind in member.kinds for g in GROUPS if kind != "send_recv" or g.ranks == 2]
        return [(kind, g) for kind, g in pairs if member.works(kind, g)]

    def check_result(self, member: Collective) -> None:
        """Every rank ends with what the collective promises."""
        for kind, place in self.cases(member):
            parts = _parts(member, kind, place)
            held = contributions(kind, place.ranks, member.phases(kind, place), parts, member.endpoints(place))
            missing = _missing(kind, place.ranks, held, parts)
            require(not missing, f"{member.name} {kind} on {place.ranks} ranks of {place.nodes} nodes: {missing[:3]}")

    def check_time(self, member: Collective) -> None:
        """On idle wires the steps take the closed form's time; a pipeline's does so in the limit of many chunks."""
        for kind, place in self.cases(member):
            hops, volume = member.hops(kind, place), member.volume(kind, place)
            label = f"{member.name} {kind} on {place.ranks} ranks of {place.nodes} nodes"
            latency = step_seconds(member.steps(kind, place), message=0.0)
            require(abs(latency - hops * ALPHA) < 1e-9, f"{label}: {latency} of latency, the closed form says {hops}")
            if kind in member.pipelined:
                chunks = 64
                wire = step_seconds(member.steps(kind, place, chunks), message=1.0, alpha=0.0)
                most = volume * (chunks + hops) / chunks
                require(volume - 1e-9 <= wire <= most + 1e-9, f"{label}: {wire} on the wire, not in [{volume}, {most}]")
            else:
                wire = step_seconds(member.steps(kind, place), message=1.0, alpha=0.0)
                require(abs(wire - volume) < 1e-9, f"{label}: {wire} on the wire, the closed form says {volume}")

    def check_patterns(self, member: Collective) -> None:
        """The arrays say of every port what the phases say; the legs add them up."""
        for kind, place in self.cases(member):
            label = f"{member.name} {kind} on {place.ranks} ranks of {place.nodes} nodes"
            listed = [(pattern_of(phase), 1) for phase in member.phases(kind, place)]
            ports = member.endpoints(place)
            flat = [_ports(p, ports) for p, repeat in listed for _ in range(repeat)]
            arrays = [_ports(p, ports) for p, repeat in member.patterns(kind, place) for _ in range(repeat)]
            require(len(flat) == len(arrays), f"{label}: {len(arrays)} rounds as arrays, {len(flat)} phases")
            require(bool(np.allclose(flat, arrays)), f"{label}: the arrays load other ports than the phases")
            if ports == place.ranks:
                pipelined, turns = kind in member.pipelined, kind in member.rotates
                found = legs_of(member.patterns(kind, place), place, pipelined, turns)
                given = member.legs(kind, place)
                same = np.allclose(_sums(found), _sums(given))
                require(bool(same), f"{label}: legs {given}, the patterns give {found}")

    def check_cost(self, member: Collective) -> None:
        """Costs are finite, grow with the message and the latency does not fall with more nodes."""
        table = load_cost_table()
        for kind, place in self.cases(member):
            for protocol in member.protocols:
                cost = member.cost(kind, place, _WIRES, table, protocol)
                if cost is None:
                    continue
                times = member.seconds(kind, np.array([8.0, 2.0**20, 2.0**30]), place, _WIRES, protocol)
                rising = 0 < times[0] < times[1] < times[2] < np.inf
                require(bool(rising), f"{member.name} {kind} {protocol}: times do not rise: {times}")
                require(
                    cost.bandwidth <= cost.ceiling * 1.0001, f"{member.name} {kind} {protocol}: beyond the bare wires"
                )

    def check_source(self, member: Collective) -> None:
        """Kinds, protocols and source are given, and the family finds it by its name."""
        self.cases(member)
        require(ALGORITHMS.get(member.name) is member, f"{member.name}: the family finds another")


_WIRES = Fabric(
    architecture="hopper",
    intra="nvlink",
    intra_bandwidth=450.0 * 2**30,
    intra_latency=0.0,
    switched=True,
    node_size=8,
    domain_size=8,
    peer_to_peer=True,
    in_network_reduction=True,
    network="infiniband",
    network_bandwidth=50.0 * 2**30,
    card_bandwidth=50.0 * 2**30,
    network_latency=0.0,
    network_reduction=True,
)


def _ports(pattern: Pattern, ports: int) -> np.ndarray:
    """Return messages (out of, into) every port."""
    out = np.bincount(pattern.source, pattern.fraction[pattern.source_flow], ports)
    into = np.bincount(pattern.destination, pattern.fraction[pattern.destination_flow], ports)
    return np.stack([out, into])


def _sums(legs: Iterable[Leg]) -> tuple[float, float, float]:
    legs = tuple(legs)
    return sum(leg.hops for leg in legs), sum(leg.inner for leg in legs), sum(leg.outer for leg in legs)


def step_seconds(steps: Iterable[Phase], message: float, alpha: float = ALPHA) -> float:
    """Return the seconds of steps that follow one another: alpha + the busiest port's bytes at 1 byte per second."""
    total = 0.0
    for phase in steps:
        sent: dict[int, float] = defaultdict(float)
        received: dict[int, float] = defaultdict(float)
        for transfer in phase:
            for rank in transfer.sources:
                sent[rank] += transfer.fraction * message
            for rank in transfer.destinations:
                received[rank] += transfer.fraction * message
        total += alpha + max([*sent.values(), *received.values()], default=0.0) / BANDWIDTH
    return total


def contributions(kind: str, ranks: int, phases: Iterable[Phase], parts: int, endpoints: int = 0) -> Held:
    """Return, for every rank and part, which ranks' data it holds after the phases; other endpoints start empty."""
    held: Held = {rank: _at_first(kind, rank, ranks, parts) for rank in range(ranks)}
    held |= {server: {} for server in range(ranks, endpoints)}
    for phase in phases:
        arrived = [(transfer, part, _sum(held, transfer, part)) for transfer in phase for part in transfer.parts]
        for transfer, part, data in arrived:
            for rank in transfer.destinations:
                before = held[rank].get(part, frozenset())
                if transfer.combines:
                    require(
                        not before & data, f"rank {rank} would add part {part} of ranks {sorted(before & data)} twice"
                    )
                held[rank][part] = before | data if transfer.combines else data
    return held


def _sum(held: Held, transfer: Transfer, part: int) -> frozenset[int]:
    """Return what the senders' parts add up to; each must hold the part and no two the same data."""
    out: frozenset[int] = frozenset()
    for rank in transfer.sources:
        data = held[rank].get(part, frozenset())
        require(bool(data), f"rank {rank} would send part {part}, which it does not hold")
        require(not out & data, f"part {part} of ranks {sorted(out & data)} would be added twice")
        out |= data
    return out


def _parts(member: Collective, kind: str, place: GroupPlacement) -> int:
    """Return the number of parts that the message is cut into: one more than the highest number used."""
    used = [part for phase in member.phases(kind, place) for transfer in phase for part in transfer.parts]
    return max(used, default=0) + 1


def _at_first(kind: str, rank: int, ranks: int, parts: int) -> dict[int, frozenset[int]]:
    own = frozenset((rank,))
    if kind in ("all_reduce", "reduce_scatter", "reduce"):
        return {part: own for part in range(parts)}
    if kind == "all_gather":
        return {rank: own}
    if kind == "gather":
        return {rank: own}
    if kind == "scatter":
        return {part: own for part in range(ranks)} if rank == 0 else {}
    if kind == "all_to_all":
        return {rank * ranks + other: own for other in range(ranks)}
    return {rank if kind == "send_recv" else 0: own} if rank == 0 else {}


def _missing(kind: str, ranks: int, held: Held, parts: int) -> list[str]:
    """Return what is not as promised, in words."""
    everyone, zero = frozenset(range(ranks)), frozenset((0,))
    wanted: dict[tuple[int, int], frozenset[int]] = {}
    if kind == "all_reduce":
        wanted = {(rank, part): everyone for rank in range(ranks) for part in range(parts)}
    elif kind == "reduce":
        wanted = {(0, part): everyone for part in range(parts)}
    elif kind == "all_gather":
        wanted = {(rank, part): frozenset((part,)) for rank in range(ranks) for part in range(ranks)}
    elif kind == "all_to_all":
        wanted = {(b, a * ranks + b): frozenset((a,)) for a in range(ranks) for b in range(ranks)}
    elif kind == "gather":
        wanted = {(0, part): frozenset((part,)) for part in range(ranks)}
    elif kind == "scatter":
        wanted = {(rank, rank): zero for rank in range(ranks)}
    elif kind == "broadcast":
        wanted = {(rank, 0): zero for rank in range(ranks)}
    elif kind == "send_recv":
        wanted = {(1, 0): zero}
    wrong = [f"rank {r} lacks part {p}" for (r, p), data in wanted.items() if held[r].get(p, frozenset()) != data]
    if kind == "reduce_scatter":
        complete = [[p for p in range(parts) if held[r].get(p) == everyone] for r in range(ranks)]
        if sorted(p for own in complete for p in own) != list(range(parts)) or len({len(own) for own in complete}) != 1:
            wrong.append(f"complete parts by rank: {complete}")
    return wrong
