"""PAT, parallel aggregated trees: all_gather and reduce_scatter in log2(n) hops, furthest ranks first.

Every rank's part goes down its own binomial tree, all trees at once; sends of one hop to one rank travel together.
Unlike Bruck's, the first hop goes furthest and carries least.  NCCL offers it only where each node has one rank.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.plain import ceil_log2
from simulator.collectives.rounds import Pattern, Round
from simulator.collectives.wires import attained, wire_ceiling
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement
from simulator.units import parse

__all__ = ["Pat"]

BASE = parse("8 us", "s")
HOP = parse("14 us", "s")
HOPS_IN_FLIGHT = 3.5
PER_RANK = parse("2.8 us", "s")
SHARE = 0.75
"""NCCL 2.28.9, src/graph/tuning.cc: base latency, latency of the network, by what it is divided, a part that grows with
the ranks, and the share of the bus bandwidth."""


class Pat(Collective):
    """all_gather and reduce_scatter between nodes with one rank each."""

    name = "pat"
    kinds = ("all_gather", "reduce_scatter")
    automatic = True
    protocols = ("simple",)
    source = "NCCL 2.28.9, src/graph/tuning.cc, src/include/comm.h (ncclPatEnable: one rank per node)"

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return NCCL's log2(n) hops with a part per rank, and three quarters of the ring's bandwidth."""
        if place.nodes < 2 or place.ranks_per_node > 1:
            return None
        hop = (HOP + 2 * fabric.network_latency) / HOPS_IN_FLIGHT
        _, outer = attained(place, fabric, table)
        return Cost(
            latency=BASE + math.log2(place.nodes) * hop + place.ranks * PER_RANK,
            bandwidth=outer * SHARE / self.volume(kind, place),
            ceiling=wire_ceiling(place, fabric, table, protocol) / self.volume(kind, place),
        )

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return log2(n), rounded up."""
        return ceil_log2(place.ranks)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return (n - 1) / n."""
        return (place.ranks - 1) / place.ranks

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the hops of all_gather, or the same ones backwards, adding up."""
        n = place.ranks
        out = [
            tuple(
                Transfer(
                    sources=(i,),
                    destinations=((i + (1 << bit)) % n,),
                    parts=tuple((i - way) % n for way in _ways(n, bit)),
                    fraction=len(_ways(n, bit)) / n,
                )
                for i in range(n)
            )
            for bit in reversed(range(ceil_log2(n)))
        ]
        if kind == "all_gather":
            return tuple(out)
        return tuple(tuple(_added(transfer) for transfer in phase) for phase in reversed(out))

    def patterns(self, kind: str, place: GroupPlacement) -> tuple[Round, ...]:
        """Return the hops as arrays."""
        n, gathers = place.ranks, kind == "all_gather"
        ranks, bits = np.arange(n), range(ceil_log2(n))
        return tuple(
            (Pattern.pairs(ranks, (ranks + (1 if gathers else -1) * (1 << bit)) % n, len(_ways(n, bit)) / n), 1)
            for bit in (reversed(bits) if gathers else bits)
        )


def _ways(n: int, bit: int) -> range:
    """Return how far the parts have come that go 2^bit further: all multiples of twice that which do not pass n."""
    return range(0, n - (1 << bit), 2 << bit)


def _added(transfer: Transfer) -> Transfer:
    return Transfer(
        sources=transfer.destinations,
        destinations=transfer.sources,
        parts=transfer.parts,
        fraction=transfer.fraction,
        combines=True,
    )
