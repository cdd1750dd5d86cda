"""One collective alone on a cluster: the numbers of `dtsim collective`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from simulator.collectives import ALGORITHMS, CollectiveTime, bus_factor, collective_seconds, with_servers
from simulator.collectives.base import KINDS
from simulator.collectives.plain import PlainCollective
from simulator.errors import PlanError, SpecError, UnknownNameError
from simulator.hardware.cluster import ClusterChanges, load_cluster
from simulator.hardware.fabric import BACKENDS, Backend, Fabric, fabric_of
from simulator.hardware.group_placement import GroupPlacement, describe_group
from simulator.report.frames import Records, Tabular
from simulator.report.prediction import QUANTILE
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, percent
from simulator.units import show

__all__ = [
    "MOST_SIZES",
    "CollectiveFigures",
    "collective_figures",
    "collective_table",
    "kind_named",
    "sizes_between",
    "table_sections",
]

MOST_SIZES = 10_000
"""Rows of the longest table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFigures(Tabular):
    """The time of one collective: what was asked, and the answer.

    Args:
        kind: as in `collectives.KINDS`.
        message: the largest buffer of one rank [B].
        cluster: its name.
        place: where the ranks lie.
        time: seconds, algorithm, protocol, spread.
        fabric: the wires it ran on.
    """

    kind: str
    message: float
    cluster: str
    place: GroupPlacement
    time: CollectiveTime
    fabric: Fabric

    @property
    def band(self) -> tuple[float, float]:
        """80 % of measurements are expected between these [s]."""
        width = math.exp(QUANTILE * self.time.sigma)
        return self.time.seconds / width, self.time.seconds * width

    @property
    def algorithm_bandwidth(self) -> float:
        """Message over time [B/s]; 0 when it takes no time."""
        return self.message / self.time.seconds if self.time.seconds > 0 else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """As nccl-tests defines it [B/s]."""
        return self.algorithm_bandwidth * bus_factor(self.kind, self.place.ranks)

    @property
    def why(self) -> str:
        """Why the bus bandwidth is above what the wires carry, in a sentence; "" where it is not."""
        place, fabric = self.place, self.fabric
        inside = fabric.intra_bandwidth if place.ranks_per_node > 1 else math.inf
        cards = place.outer_bandwidth(fabric) / place.ranks_per_node if place.nodes > 1 else math.inf
        bus, ranks = self.bus_bandwidth, place.ranks
        if bus > cards:
            return self._above_cards(cards)
        if bus > inside:
            return (
                f"The bus bandwidth is above the link's {show(inside, 'B/s')}: nccl-tests counts 2(n-1)/n = "
                f"{bus_factor(self.kind, ranks):.3g} times the message, as a ring sends it, but the switch adds and "
                f"copies ({self.time.algorithm}), so each GPU sends only (n+1)/n = {(ranks + 1) / ranks:.3g} times."
            )
        return ""

    def _above_cards(self, cards: float) -> str:
        nodes, shown = self.place.nodes, show(cards, "B/s")
        if self.kind == "all_to_all":
            return (
                f"The bus bandwidth is above a GPU's network share of {shown}: one part in {nodes} of the message stays "
                f"in the node, and nccl-tests counts it too; the limit is N/(N-1) = {nodes / (nodes - 1):.3g} times the "
                f"share."
            )
        how = (
            "a tree sends each byte once up and once down"
            if "tree" in self.time.algorithm
            else "a ring enters and leaves a node only once for all its GPUs, over all their cards"
        )
        return (
            f"The bus bandwidth is above a GPU's network share of {shown}: it counts what passes a GPU, most of it inside "
            f"the node; between the {nodes} nodes {how}. What must cross is {show(self._network_rate(), 'B/s')} per GPU."
        )

    def _network_rate(self) -> float:
        """Return what leaves a node at least, per GPU and second, whatever the algorithm [B/s]."""
        nodes, inner = self.place.nodes, self.place.ranks_per_node
        factor = 2 * (nodes - 1) / nodes if self.kind == "all_reduce" else (nodes - 1) / nodes
        return self.algorithm_bandwidth * factor / inner

    def tables(self) -> dict[str, Records]:
        """`collective`: one row."""
        return {"collective": lambda: [self.record()]}

    def record(self) -> dict[str, Any]:
        """Return the row of the table."""
        low, high = self.band
        return {
            "collective": self.kind,
            "cluster": self.cluster,
            "ranks": self.place.ranks,
            "nodes": self.place.nodes,
            "message_size_bytes": self.message,
            "time_s": self.time.seconds,
            "low_s": low,
            "high_s": high,
            "algorithm": self.time.algorithm,
            "protocol": self.time.protocol,
            "algorithm_bandwidth": self.algorithm_bandwidth,
            "bus_bandwidth": self.bus_bandwidth,
            "calibrated": self.time.calibrated,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim collective`."""
        from simulator import __version__

        low, high = self.band
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "message_bytes": self.message,
            "ranks": self.place.ranks,
            "time_s": {"value": self.time.seconds, "low": low, "high": high},
            "algorithm_bandwidth": self.algorithm_bandwidth,
            "bus_bandwidth": self.bus_bandwidth,
            "algorithm": self.time.algorithm,
            "protocol": self.time.protocol,
            "provenance": {
                "version": __version__,
                "cluster": self.cluster,
                "calibration": self.time.profile,
                "calibrated": self.time.calibrated,
                "class": str(self.time.price_class),
                "sigma": self.time.sigma,
                "engine": self.time.method.engine,
                "method": str(self.time.method),
                "placement": self.place.text,
            },
        }

    def section(self) -> Section:
        """Return the answer to read."""
        low, high = self.band
        time = self.time
        known = "calibrated" if time.calibrated else "uncalibrated: no logs of this platform"
        return Section(
            title=f"{self.kind} of {show(self.message, 'B')} over {_ranks(self.place)} of {self.cluster}: "
            f"{show(time.seconds, 's')} (80 % band: {show(low, 's')} to {show(high, 's')})",
            lines=(
                f"bus bandwidth {show(self.bus_bandwidth, 'B/s')}, algorithm bandwidth {show(self.algorithm_bandwidth, 'B/s')}",
                f"algorithm {time.algorithm}, protocol {time.protocol}; {self.place.told('groups')}",
                *([f"by {time.method}"] if time.method.why else []),
                *self._through_ports(),
                f"profile {time.profile} ({known}), spread of its class {time.price_class}: {percent(time.sigma)}",
                *([self.why] if self.why else []),
            ),
        )

    def _through_ports(self) -> tuple[str, ...]:
        """Beside a ring's, what passes the busiest port of an algorithm that sends more; nothing of others."""
        if self.kind != "all_reduce" or self.place.ranks < 2:
            return ()
        ring, member = bus_factor(self.kind, self.place.ranks), ALGORITHMS.get(self.time.algorithm)
        if not isinstance(member, PlainCollective):
            return ()
        way, both = member.ways(self.kind, self.place), member.volume(self.kind, self.place)
        if way <= 1.001 * ring:
            return ()
        return (
            f"the busiest port takes {way:.3g} messages one way and {both:.3g} in turn, that of a ring {ring:.3g} both ways at once: "
            f"{way / ring:.3g} times as many each way, {both / ring:.3g} times as long",
        )


def kind_named(text: str) -> str:
    """Return the collective meant by a name: case, "-", "_" and a missing "_" do not matter.

    >>> kind_named("alltoall"), kind_named("AllReduce"), kind_named("ring")
    ('all_to_all', 'all_reduce', 'ring')
    """
    plain = {kind.replace("_", ""): kind for kind in KINDS}
    return plain.get(text.lower().replace("_", "").replace("-", ""), text)


def _nearest(ranks: int, nodes: int, node_size: int, chosen: bool) -> str:
    """Ranks and nodes that go together, close to those that do not; `chosen`: the nodes were."""
    if ranks < 1 or nodes < 1:
        return "--ranks 1"
    each = min(node_size, max(1, round(ranks / nodes)))
    ways = [f"--ranks {each * nodes}"]
    if chosen:
        counts = (ranks // share for share in range(1, node_size + 1) if ranks % share == 0)
        ways.insert(0, f"--nodes {min(counts, key=lambda count: (abs(count - nodes), count))}")
    return ", or ".join(ways)


def collective_figures(
    kind: str,
    message: float,
    cluster: str,
    ranks: int,
    nodes: int | None = None,
    algorithm: str = "auto",
    protocol: str = "auto",
    groups: int = 1,
    backend: str = "nccl",
    servers: int | None = None,
    changes: ClusterChanges | None = None,
) -> CollectiveFigures:
    """Return the figures of one collective, alone on the cluster.

    Args:
        kind: a name of `collectives.KINDS`, also spelled alltoall, AllReduce, ...
        message: the largest buffer of one rank [B].
        cluster: a name under hardware_specs/clusters, or a file.
        ranks: how many take part.
        nodes: on how many nodes, evenly; None = as few as hold them.
        algorithm, protocol: "auto" = what NCCL would choose.
        groups: how many such groups, side by side in every node, run at the same time.
        backend: the library: "nccl" (the vendor's) or "gloo", through host memory.
        servers: machines without GPUs that help the algorithm; None = as many as it asks for.
        changes: what the cluster is made of in place of what its files say.

    Raises:
        SpecError: an unknown name.
        PlanError: ranks and nodes do not fit each other or the cluster.

    >>> collective_figures("allreduce", 2.0**30, "dgx_h100", 8).time.seconds < 0.01
    True
    """
    node_size = load_cluster(cluster, changes=changes).node.gpus
    count = -(-ranks // node_size) if nodes is None else nodes
    if ranks < 1 or count < 1 or ranks % count or ranks // count > node_size:
        raise PlanError(
            f"ranks must lie evenly on nodes of {node_size} GPUs, but {ranks} ranks on {count} nodes do not. Nearest: "
            f"{_nearest(ranks, count, node_size, nodes is not None)}"
        )
    whole = load_cluster(cluster, count * node_size, changes)
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    fabric = fabric_of(whole, cast(Backend, backend))
    domains = -(-count * node_size // fabric.domain_size)
    level = "node" if count == 1 else "rack" if domains == 1 else None
    if ranks % domains:
        raise PlanError(
            f"ranks must lie evenly on the {domains} racks of {whole.name!r} they need, but {ranks} do not. Nearest: "
            f"{ranks // domains * domains}"
        )
    place = describe_group(ranks, domains, groups, level, fabric)
    known = kind_named(kind)
    if servers is not None and place.nodes == 1:
        raise PlanError(
            f"servers add up between nodes, but {ranks} ranks lie on one. Way out: --nodes, or no --servers"
        )
    chosen = algorithm if servers is None else with_servers(algorithm, servers)
    time = collective_seconds(known, message, place, fabric, chosen, protocol)
    return CollectiveFigures(kind=known, message=message, cluster=whole.name, place=place, time=time, fabric=fabric)


def collective_table(
    kind: str,
    messages: Sequence[float],
    cluster: str,
    ranks: int,
    nodes: int | None = None,
    algorithm: str = "auto",
    protocol: str = "auto",
    groups: int = 1,
    backend: str = "nccl",
    servers: int | None = None,
    changes: ClusterChanges | None = None,
) -> list[CollectiveFigures]:
    """Return the figures of each message size; arguments and errors as `collective_figures`.

    >>> rows = collective_table("all_reduce", sizes_between(2.0**20, 2.0**24), "dgx_h100", 8)
    >>> [row.message / rows[0].message for row in rows]
    [1.0, 2.0, 4.0, 8.0, 16.0]
    """
    return [
        collective_figures(kind, size, cluster, ranks, nodes, algorithm, protocol, groups, backend, servers, changes)
        for size in messages
    ]


def _ranks(place: GroupPlacement) -> str:
    return f"{place.ranks} rank{'s' if place.ranks != 1 else ''}"


def sizes_between(smallest: float, largest: float) -> list[float]:
    """Return the sizes from one to the other, each twice the last [B].

    Raises:
        SpecError: the first is above the second, or not above zero.

    >>> sizes_between(1024, 5000)
    [1024.0, 2048.0, 4096.0]
    """
    if not 0 < smallest <= largest:
        raise SpecError(f"--sizes: expected SMALLEST:LARGEST, got {show(smallest, 'B')} to {show(largest, 'B')}")
    return [smallest * 2.0**i for i in range(1 + math.floor(math.log2(largest / smallest) + 1e-9))]


def table_sections(rows: Sequence[CollectiveFigures]) -> list[Section]:
    """Return a table over sizes to read, with the reason where bus bandwidths are above the wires'."""
    first = rows[0]
    known = "" if all(row.time.calibrated for row in rows) else ", uncalibrated where marked *"
    lines = tuple(
        (
            show(row.message, "B"),
            show(row.time.seconds, "s"),
            f"{show(row.band[0], 's')} - {show(row.band[1], 's')}",
            row.time.algorithm,
            row.time.protocol,
            show(row.algorithm_bandwidth, "B/s"),
            show(row.bus_bandwidth, "B/s"),
            "" if row.time.calibrated else "*",
        )
        for row in rows
    )
    reasons = [row.why for row in rows if row.why]
    return [
        Section(
            title=f"{first.kind} over {_ranks(first.place)} of {first.cluster}, {first.place.told('groups')}; profile "
            f"{first.time.profile}{known}",
            table=Table(
                headings=("message", "time", "80 % band", "algorithm", "protocol", "algbw", "busbw", ""),
                rows=lines,
                left=(3, 4),
            ),
            below=tuple(reasons[-1:]),
        )
    ]
