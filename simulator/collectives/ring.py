"""The ring: every rank sends to its right neighbour and receives from its left.

all_reduce on four ranks: three steps gather sums, three more hand them round; each step moves a quarter of the message.

    rank 0 -> rank 1 -> rank 2 -> rank 3 -> rank 0        part p starts at rank p and is complete at rank p - 1

Each link carries (n-1)/n of the message once (all_gather, reduce_scatter) or twice (all_reduce): no algorithm moves
less, but the latency grows with n.  broadcast and reduce send chunks down the same chain.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.rounds import Pattern, Round
from simulator.collectives.wires import chunk_seconds, hop_latency, ring_bandwidth, wire_ceiling
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Ring"]


class Ring(Collective):
    """Round a ring; broadcast and reduce down a chain."""

    name = "ring"
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
    automatic = True
    source = "Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005); NCCL src/graph/tuning.cc"
    pipelined = ("broadcast", "reduce")
    rotates = ("all_reduce", "all_gather", "reduce_scatter")

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return base + a hop per step, the slower ones between nodes; and the ring's share of the wires."""
        bandwidth = ring_bandwidth(place, fabric, table, protocol)
        if bandwidth is None:
            return None
        outer = _rounds(kind) * (place.nodes - 1)
        inner = self.hops(kind, place) - outer
        slow = hop_latency(self.name, protocol, "outer", place, fabric, table) if outer else 0.0
        latency = inner * hop_latency(self.name, protocol, "inner", place, fabric, table) + outer * slow
        if outer and protocol == "simple" and kind == "all_reduce":
            latency *= table.plateau[table.generation_of(fabric)]
        if outer and kind in self.pipelined:
            latency += outer * chunk_seconds(place, fabric, table, protocol)
        volume = self.volume(kind, place)
        return Cost(
            latency=table.base_latency[self.name][protocol] + latency,
            bandwidth=bandwidth / volume,
            ceiling=wire_ceiling(place, fabric, table, protocol) / volume,
        )

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return n - 1, twice that for all_reduce."""
        return _rounds(kind) * (place.ranks - 1)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return (n - 1) / n, twice that for all_reduce; 1 down a chain."""
        return 1.0 if kind in self.pipelined else self.hops(kind, place) / place.ranks

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the steps: sums travel first, then copies; broadcast goes out from rank 0, reduce comes in to it."""
        n = place.ranks
        if kind == "broadcast":
            return tuple(_hop(i, i + 1, False) for i in range(n - 1))
        if kind == "reduce":
            return tuple(_hop(i, i - 1, True) for i in range(n - 1, 0, -1))
        sums = [_turn(n, -1 - step, True) for step in range(n - 1)] if kind != "all_gather" else []
        copies = [_turn(n, -step, False) for step in range(n - 1)] if kind != "reduce_scatter" else []
        return tuple(sums + copies)

    def patterns(self, kind: str, place: GroupPlacement) -> tuple[Round, ...]:
        """Return the one pattern of all steps: everybody sends an n-th to the right."""
        if kind in self.pipelined:
            return super().patterns(kind, place)
        ranks = np.arange(place.ranks)
        return ((Pattern.pairs(ranks, (ranks + 1) % place.ranks, 1 / place.ranks), self.hops(kind, place)),)


def _rounds(kind: str) -> int:
    return 2 if kind == "all_reduce" else 1


def _hop(source: int, destination: int, combines: bool) -> Phase:
    """Return one hop of a chain: the whole message."""
    return (Transfer(sources=(source,), destinations=(destination,), parts=(0,), fraction=1.0, combines=combines),)


def _turn(n: int, shift: int, combines: bool) -> Phase:
    """Return one step of the ring: rank i sends part i + shift to rank i + 1."""
    return tuple(
        Transfer(
            sources=(i,),
            destinations=((i + 1) % n,),
            parts=((i + shift) % n,),
            fraction=1 / n,
            combines=combines,
        )
        for i in range(n)
    )
