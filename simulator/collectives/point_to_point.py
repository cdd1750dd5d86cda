"""One rank sends, another receives: the messages between pipeline ranks."""

from __future__ import annotations

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.wires import channels, hop_latency, lowest_bandwidth, wire_ceiling
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement
from simulator.units import parse

__all__ = ["PointToPoint"]


_CHANNELS = 32
"""Channels for sends and receives of a communicator inside a node with NVSwitch, and to each peer."""
_PART = parse("16 MiB", "B")
"""A part of a message larger than this is halved, while channels are left: 32 chunks of 512 KiB."""
_SIZES = 36
"""Sizes of 64 B x 2^i that are told apart."""


class PointToPoint(Collective):
    """send and receive, as grouped calls: no choice of algorithm, the Simple protocol for all but tiny messages.

    Inside a node with NVSwitch a message starts on few channels, so that those of all ranks together do not pass 32, and
    gets twice as many each time a channel would carry more than 16 MiB.  So from 64 to 512 MiB eight ranks need the
    same time, and below 64 MiB an eighth of the wire is all that a message sees.
    """

    name = "point_to_point"
    aliases = ("p2p",)
    kinds = ("send_recv",)
    automatic = True
    protocols = ("simple",)
    source = "NCCL src/enqueue.cc (point-to-point tasks, calcP2pChannelCount, scheduleP2pTasksToPlan)"

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return base + one hop; a peer's share of the wires, between nodes a share of the network cards."""
        where = "outer" if place.nodes > 1 else "inner"
        latency = hop_latency(self.name, protocol, where, place, fabric, table)
        return Cost(
            latency=table.base_latency[self.name][protocol] + latency,
            bandwidth=lowest_bandwidth(_pair(place), fabric, table),
            ceiling=wire_ceiling(_pair(place), fabric, table, protocol),
            medium=_shares(place, fabric, table),
        )

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return 1."""
        return 1

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return 1."""
        return 1.0

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the one phase: each rank sends to the next, as nccl-tests' sendrecv does."""
        n = place.ranks
        ends = [(0, 1)] if n == 2 else [(i, (i + 1) % n) for i in range(n)]
        return (
            tuple(Transfer(sources=(a,), destinations=(b,), parts=(a,), fraction=1.0, combines=False) for a, b in ends),
        )


def _pair(place: GroupPlacement) -> GroupPlacement:
    """Return the placement of one sender and one receiver of the ring of hops that `place` may describe."""
    inside = place.nodes == 1
    return GroupPlacement(
        ranks=2,
        nodes=1 if inside else 2,
        ranks_per_node=2 if inside else 1,
        level=place.level,
        concurrent=place.concurrent,
        crossing=place.crossing,
    )


def _shares(place: GroupPlacement, fabric: Fabric, table: CostTable) -> tuple[float, ...]:
    """Return the share of the wire that the channels of a message of 64 B x 2^i take; () = all of it."""
    if place.nodes > 1 or fabric.intra != "nvlink" or not (fabric.switched and fabric.peer_to_peer):
        return ()
    opened = 2 * channels(place, fabric, table)
    return tuple(min(1.0, _channels_of(64.0 * 2**i, place.ranks) / opened) for i in range(_SIZES))


def _channels_of(message: float, ranks: int) -> int:
    """Return on how many channels NCCL puts a message to one peer of a communicator.

    >>> [_channels_of(2.0**k, 8) for k in (20, 26, 27, 28, 29, 33)]
    [4, 4, 8, 16, 32, 32]
    """
    count = _CHANNELS
    while count * ranks > _CHANNELS and count > 1:
        count //= 2
    while message > count * _PART and count <= _CHANNELS // 2:
        count *= 2
    return count
