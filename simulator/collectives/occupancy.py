"""How many multiprocessors a collective holds while it runs: one block of threads per channel, one per multiprocessor.

NCCL opens two channels for each one its search found, and drops channels for small messages: each should have enough
bytes for its threads.  So a small collective leaves the GPU to the GEMM beside it, and a large one takes 16 to 32.
"""

from __future__ import annotations

import math

from simulator.collectives.wires import channels
from simulator.errors import PlanError, UnknownNameError
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.fabric import Fabric, GroupPlacement
from simulator.units import parse

__all__ = ["MAX_CHANNELS", "multiprocessors", "open_channels"]

MAX_CHANNELS = 64
"""Of one communicator: NCCL 2.28.9, src/include/device.h (MAXCHANNELS)."""

_THREADS = {"ll": 512, "ll128": 640, "simple": 512}
_TREE_THREADS = 640
_LEAST = {"ll": 8, "ll128": 8, "simple": 64}
_COLLNET, _LEAST_COLLNET = ("collnet_direct", "collnet_chain"), 512
"""Threads of a block, and bytes that a thread should have: NCCL 2.28.9, src/graph/tuning.cc (threadThresholds)."""

_NVLS = {"hopper": (16, 16), "blackwell": (24, 32)}
"""Channels of NVLS on (one node, several): NCCL 2.28.9, src/transport/nvls.cc."""

_CHUNK = {"inner": parse("512 KiB", "B"), "outer": parse("128 KiB", "B")}
"""Bytes that a channel of sends and receives moves at a time over NVLink and otherwise: NCCL 2.28.9, src/init.cc."""


def open_channels(place: GroupPlacement, fabric: Fabric, algorithm: str = "ring") -> int:
    """Return the channels that a communicator has for an algorithm, before small messages drop some.

    >>> from simulator.hardware.cluster import load_cluster
    >>> from simulator.hardware.fabric import describe_group, fabric_of
    >>> open_channels(describe_group(8), fabric_of(load_cluster("dgx_h100", 8)))
    24
    """
    table = load_cost_table()
    generation = table.generation_of(fabric)
    if algorithm in ("nvls", "nvls_tree") and generation in _NVLS:
        return _NVLS[generation][place.nodes > 1]
    count = 2 * channels(place, fabric, table)
    if place.nodes > 1 and count < 16 and generation in table.nvls_tree_cap:
        count *= 2
    return min(count, MAX_CHANNELS)


def multiprocessors(
    kind: str,
    message: float,
    place: GroupPlacement,
    fabric: Fabric,
    algorithm: str = "ring",
    protocol: str = "simple",
) -> int:
    """Return how many multiprocessors of each GPU the kernel of a collective holds; 0 for a group of one rank.

    Args:
        kind: as in `collectives.KINDS`.
        message: the largest buffer of one rank [B].
        place: where the group lies.
        fabric: the wires.
        algorithm, protocol: those that run, as in `CollectiveTime`.

    Raises:
        UnknownNameError: no such protocol.
        PlanError: a message below zero, or without end.

    >>> from simulator.hardware.cluster import load_cluster
    >>> from simulator.hardware.fabric import describe_group, fabric_of
    >>> wires = fabric_of(load_cluster("dgx_h100", 8))
    >>> [multiprocessors("all_gather", 2.0**k, describe_group(8), wires) for k in (10, 18, 30)]
    [1, 8, 24]
    """
    if protocol not in _THREADS:
        raise UnknownNameError("protocol", protocol, _THREADS)
    if not 0 <= message < math.inf:
        raise PlanError(f"a message must be a finite number of bytes, not below zero, but {kind} has {message}")
    if place.ranks < 2:
        return 0
    most = open_channels(place, fabric, algorithm)
    if algorithm in ("nvls", "nvls_tree"):
        return most
    if algorithm in ("ring", "tree", "pat", *_COLLNET):
        threads = _TREE_THREADS if algorithm != "ring" else _THREADS[protocol]
        least = _LEAST_COLLNET if algorithm in _COLLNET else _LEAST[protocol]
        if algorithm == "ring" and protocol == "ll":
            least *= place.ranks
        return max(1, min(most, int(message / threads / least)))
    return _of_sends(kind, message, place, fabric, most)


def _of_sends(kind: str, message: float, place: GroupPlacement, fabric: Fabric, most: int) -> int:
    """Return the channels of grouped sends and receives: a power of two, no more than they have chunks to move."""
    chunk = _CHUNK["inner" if place.nodes == 1 and fabric.intra == "nvlink" else "outer"]
    peers = 1 if kind == "send_recv" else place.ranks - 1
    share = message if kind == "send_recv" else message / place.ranks
    allowed = 1 << (most.bit_length() - 1)
    return max(1, min(allowed, peers * math.ceil(share / chunk)))
