"""One collective alone on a cluster: the numbers of `dtsim collective`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from simulator.collectives import CollectiveTime, bus_factor, collective_seconds
from simulator.collectives.base import KINDS
from simulator.errors import PlanError
from simulator.hardware.cluster import MAX_WORLD_SIZE, load_cluster
from simulator.hardware.fabric import GroupPlacement, describe_group, fabric_of
from simulator.report.prediction import QUANTILE
from simulator.report.table import Section, percent
from simulator.units import show

__all__ = ["CollectiveFigures", "collective_figures", "kind_named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFigures:
    """The time of one collective: what was asked, and the answer.

    Args:
        kind: as in `collectives.KINDS`.
        message: the largest buffer of one rank [B].
        cluster: its name.
        place: where the ranks lie.
        time: seconds, algorithm, protocol, spread.
    """

    kind: str
    message: float
    cluster: str
    place: GroupPlacement
    time: CollectiveTime

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

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim collective`."""
        from simulator import __version__

        low, high = self.band
        return {
            "schema_version": 1,
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
                "class": self.time.class_name,
                "sigma": self.time.sigma,
                "engine": "closed form",
                "placement": self.place.text,
            },
        }

    def section(self) -> Section:
        """Return the answer to read."""
        low, high = self.band
        time = self.time
        known = "calibrated" if time.calibrated else "uncalibrated: no logs of this platform"
        return Section(
            title=f"{self.kind} of {show(self.message, 'B')} over {self.place.ranks} ranks of {self.cluster}: "
            f"{show(time.seconds, 's')} (80 % band: {show(low, 's')} to {show(high, 's')})",
            lines=(
                f"bus bandwidth {show(self.bus_bandwidth, 'B/s')}, algorithm bandwidth {show(self.algorithm_bandwidth, 'B/s')}",
                f"algorithm {time.algorithm}, protocol {time.protocol}; {self.place.text}",
                f"profile {time.profile} ({known}), spread of its class {time.class_name}: {percent(time.sigma)}",
            ),
        )


def kind_named(text: str) -> str:
    """Return the collective meant by a name: case, "-", "_" and a missing "_" do not matter.

    >>> kind_named("alltoall"), kind_named("AllReduce"), kind_named("ring")
    ('all_to_all', 'all_reduce', 'ring')
    """
    plain = {kind.replace("_", ""): kind for kind in KINDS}
    return plain.get(text.lower().replace("_", "").replace("-", ""), text)


def collective_figures(
    kind: str,
    message: float,
    cluster: str,
    ranks: int,
    nodes: int | None = None,
    algorithm: str = "auto",
    protocol: str = "auto",
) -> CollectiveFigures:
    """Return the figures of one collective, alone on the cluster.

    Args:
        kind: a name of `collectives.KINDS`, also spelled alltoall, AllReduce, ...
        message: the largest buffer of one rank [B].
        cluster: a name under hardware_specs/clusters, or a file.
        ranks: how many take part.
        nodes: on how many nodes, evenly; None = as few as hold them.
        algorithm, protocol: "auto" = what NCCL would choose.

    Raises:
        SpecError: an unknown name.
        PlanError: ranks and nodes do not fit each other or the cluster.

    >>> collective_figures("allreduce", 2.0**30, "dgx_h100", 8).time.seconds < 0.01
    True
    """
    node_size = load_cluster(cluster).node.gpus
    count = -(-ranks // node_size) if nodes is None else nodes
    if ranks < 1 or count < 1 or ranks % count or ranks // count > node_size or count * node_size > MAX_WORLD_SIZE:
        raise PlanError(
            f"ranks must lie evenly on nodes of {node_size} GPUs, but {ranks} ranks on {count} nodes do not. Nearest: "
            f"{max(1, min(ranks, node_size))} ranks on one node, or a multiple of {node_size} without --nodes"
        )
    whole = load_cluster(cluster, count * node_size)
    fabric = fabric_of(whole)
    domains = -(-count * node_size // fabric.domain_size)
    level = "node" if count == 1 else "rack" if domains == 1 else None
    if ranks % domains:
        raise PlanError(
            f"ranks must lie evenly on the {domains} racks of {whole.name!r} they need, but {ranks} do not. Nearest: "
            f"{ranks // domains * domains}"
        )
    place = describe_group(ranks, domains, level=level)
    known = kind_named(kind)
    time = collective_seconds(known, message, place, fabric, algorithm, protocol)
    return CollectiveFigures(kind=known, message=message, cluster=whole.name, place=place, time=time)
