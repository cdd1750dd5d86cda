"""What a GPU can use of its host: the link to it, and its part of the memory and of the memory's bandwidth."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from simulator.errors import SpecError
from simulator.hardware.cluster import Cluster
from simulator.specs import NamedSpec, load_named
from simulator.units import Seconds

__all__ = ["Host", "HostCoefficients", "host_of", "host_pace", "load_host_coefficients"]

Fraction = Annotated[float, Field(gt=0, le=1)]
Spread = Annotated[float, Field(gt=0, le=3)]


class HostCoefficients(NamedSpec):
    """What hosts reach: `copy_fraction` of the link's bandwidth by copies of pinned memory, after `copy_start` [s] of the driver;
    `stream_fraction` of the memory's bandwidth by loops over arrays, `unbound_fraction` where the threads of several ranks may each run on
    every core; sigmas of log(measured / priced), `nvme_sigma` of drives.
    `arm_pace`: how fast Arm servers run the Python and the dispatch of a framework beside
    x86 servers, whose times its profile gives [1]; `training_pace`: how fast operators are started in a training step beside a loop of one
    operator, which is what profiles give [1]."""

    copy_fraction: Fraction
    copy_start: Seconds
    stream_fraction: Fraction
    unbound_fraction: Fraction
    copy_sigma: Spread
    stream_sigma: Spread
    unbound_sigma: Spread
    nvme_sigma: Spread
    arm_pace: Fraction
    training_pace: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One GPU's part of its host.

    Args:
        copy_bandwidth: one direction, reached [B/s]; `copy_start`: before the first byte [s].
        stream_bandwidth: of the memory, reached when all GPUs of the job on the node use it [B/s].
        memory: of the whole node [B].
        nvme_read, nvme_write: of the drives, when all GPUs of the job on the node use them [B/s]; 0 = the node's file names none.
    """

    copy_bandwidth: float
    copy_start: float
    stream_bandwidth: float
    memory: float
    copy_sigma: float
    stream_sigma: float
    nvme_read: float = 0.0
    nvme_write: float = 0.0
    nvme_sigma: float = 0.0


@functools.lru_cache(maxsize=4)
def load_host_coefficients(name: str = "host") -> HostCoefficients:
    """Return the file calibrations/host.toml."""
    return load_named("calibrations", name, HostCoefficients)


def host_pace(kind: str) -> float:
    """Return how fast a kind of host ("intel", "amd", "arm") runs a framework's thread, 1 = as its profile says.

    >>> host_pace("amd"), host_pace("arm") < 1.0
    (1.0, True)
    """
    return load_host_coefficients().arm_pace if kind == "arm" else 1.0


def host_of(cluster: Cluster, unbound: bool = False) -> Host:
    """Return one GPU's part of its host, which it shares with the GPUs of its node that belong to the job.

    Args:
        unbound: the threads of every rank may run on every core, where those of several get in each other's way.

    Raises:
        SpecError: the node's file does not say what memory its host has.

    >>> from simulator.hardware.cluster import load_cluster
    >>> host = host_of(load_cluster("dgx_h100"))
    >>> 50e9 < host.copy_bandwidth < 63e9, host.stream_bandwidth < host.copy_bandwidth * 2
    (True, True)
    """
    node, numbers = cluster.node, load_host_coefficients()
    if node.host_memory is None or node.host_memory_bandwidth is None:
        raise SpecError(
            f"what is put on the host needs the host's memory, but node {node.name!r} gives no host_memory or no "
            "host_memory_bandwidth. Way out: add both to its file, or leave out the offloading"
        )
    crowded = unbound and cluster.gpus_per_node > 1
    return Host(
        copy_bandwidth=cluster.host_link.bandwidth
        * numbers.copy_fraction
        / min(node.gpus_per_host_link, cluster.gpus_per_node),
        copy_start=numbers.copy_start,
        stream_bandwidth=node.host_memory_bandwidth
        * (numbers.unbound_fraction if crowded else numbers.stream_fraction)
        / cluster.gpus_per_node,
        memory=node.host_memory,
        copy_sigma=numbers.copy_sigma,
        stream_sigma=numbers.unbound_sigma if crowded else numbers.stream_sigma,
        nvme_read=(node.nvme_read or 0.0) / cluster.gpus_per_node,
        nvme_write=(node.nvme_write or 0.0) / cluster.gpus_per_node,
        nvme_sigma=numbers.nvme_sigma,
    )
