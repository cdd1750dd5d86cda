"""all_to_all as pairwise exchange: in step k every rank sends to the rank k places further on.

NCCL posts all sends and receives at once, so the wires inside and outside a node work at the same time, and the slower
decides.  On a torus of D dimensions n ranks lie in a block of a = n^(1/D) on each side; a message for a rank of them goes a / 4 hops
in each dimension in the mean and takes as many links, so that with all 2 D links of every chip at work an exchange takes D a / 4 times
the bytes of a chip over the bandwidth of its links (channel load of a k-ary n-cube under uniform traffic: Dally and Towles, Principles
and Practices of Interconnection Networks, 2004, chapter 5).
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.rounds import Pattern, Round
from simulator.collectives.wires import attained, hop_latency, peers_latency
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Pairwise"]


class Pairwise(Collective):
    """all_to_all: every rank has a part for every other."""

    name = "pairwise"
    kinds = ("all_to_all",)
    automatic = True
    protocols = ("simple",)
    source = (
        "Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005), section 4.4; NCCL src/enqueue.cc (grouped send and receive)"
    )

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return base + a little per peer; the bytes for peers inside and outside the node flow side by side."""
        n, g = place.ranks, place.ranks_per_node
        inner, outer = attained(place, fabric, table, many_flows=True)
        times, bare = [], []
        latency = table.base_latency[self.name][protocol]
        if g > 1:
            times.append((g - 1) / n / inner)
            bare.append((g - 1) / n / place.inner_bandwidth(fabric, many_flows=True))
            latency += (g - 1) * hop_latency(self.name, protocol, "inner", _local(place), fabric, table)
        if n > g:
            times.append((n - g) / n / (outer / place.fewest_per_node))
            bare.append((n - g) / n / (place.outer_bandwidth(fabric) / place.fewest_per_node))
            if fabric.torus:
                hops = fabric.torus * n ** (1 / fabric.torus) / 4
                links, share = fabric.intra_bandwidth, table.attained.get(fabric.intra, 0.0)
                if not fabric.intra:  # a chip alone has its network
                    links, share = fabric.network_bandwidth, outer / place.outer_bandwidth(fabric)
                times.append(hops / (links * share))
                bare.append(hops / links)
            latency += peers_latency(n - g, protocol, place, fabric, table)
        return Cost(latency=latency, bandwidth=1 / max(times), ceiling=1 / max(bare))

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return n - 1."""
        return place.ranks - 1

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return (n - 1) / n."""
        return (place.ranks - 1) / place.ranks

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the steps; part a x n + b is what rank a has for rank b."""
        n = place.ranks
        return tuple(
            tuple(
                Transfer(sources=(i,), destinations=((i + k) % n,), parts=(i * n + (i + k) % n,), fraction=1 / n)
                for i in range(n)
            )
            for k in range(1, n)
        )

    def patterns(self, kind: str, place: GroupPlacement) -> tuple[Round, ...]:
        """Return the steps as arrays."""
        n = place.ranks
        ranks = np.arange(n)
        return tuple((Pattern.pairs(ranks, (ranks + k) % n, 1 / n), 1) for k in range(1, n))


def _local(place: GroupPlacement) -> GroupPlacement:
    """Return the part of the group inside one node."""
    return GroupPlacement(ranks=place.ranks_per_node, ranks_per_node=place.ranks_per_node)
