"""One rank sends, another receives: the messages between pipeline ranks."""

from __future__ import annotations

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.wires import hop_latency, lowest_bandwidth, wire_ceiling
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric, GroupPlacement

__all__ = ["PointToPoint"]


class PointToPoint(Collective):
    """send and receive, as grouped calls: no choice of algorithm, the Simple protocol for all but tiny messages."""

    name = "point_to_point"
    aliases = ("p2p",)
    kinds = ("send_recv",)
    protocols = ("simple",)
    source = "NCCL src/enqueue.cc (point-to-point tasks)"

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return base + one hop; a peer's share of the wires, between nodes a share of the network cards."""
        where = "outer" if place.nodes > 1 else "inner"
        latency = hop_latency(self.name, protocol, where, place, fabric, table)
        return Cost(
            latency=table.base_latency[self.name][protocol] + latency,
            bandwidth=lowest_bandwidth(_pair(place), fabric, table),
            ceiling=wire_ceiling(_pair(place), fabric, table, protocol),
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
