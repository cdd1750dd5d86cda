"""gather and scatter as NCCL does them: the root posts one send or receive per rank, all at once.

The root's port carries all bytes; NCCL has no tree for these kinds.  What comes from other nodes arrives at the root's
own card; what goes to them may leave by the card of each receiver's rail, after one hop inside the node (PXN), where
the GPUs share NVLink.
"""

from __future__ import annotations

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.wires import attained, hop_latency, peers_latency
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Direct"]


class Direct(Collective):
    """gather and scatter straight between rank 0 and all others."""

    name = "direct"
    aliases = ("linear",)
    kinds = ("gather", "scatter")
    automatic = True
    protocols = ("simple",)
    source = "NCCL src/enqueue.cc (grouped send and receive); nccl-tests src/gather.cu, src/scatter.cu"

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return base + a little per peer; the root's port inside the node and the cards work at the same time."""
        n, g = place.ranks, place.ranks_per_node
        inner, outer = attained(place, fabric, table, many_flows=True)
        latency, times, bare = table.base_latency["pairwise"][protocol], [], []
        spreads = kind == "scatter" and fabric.intra == "nvlink" and g > 1
        passed = (n - g) * (g - 1) / g if spreads else 0.0
        cards = 1 if spreads else place.fewest_per_node
        if g > 1:
            here = GroupPlacement(ranks=g, ranks_per_node=g)
            latency += (g - 1) * hop_latency("pairwise", protocol, "inner", here, fabric, table)
            times.append((g - 1 + passed) / n / inner)
            bare.append((g - 1 + passed) / n / place.inner_bandwidth(fabric, many_flows=True))
        if n > g:
            latency += peers_latency(n - g, protocol, place, fabric, table)
            times.append((n - g) / n * cards / outer)
            bare.append((n - g) / n * cards / place.outer_bandwidth(fabric))
        return Cost(latency=latency, bandwidth=1 / max(times), ceiling=1 / max(bare))

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return 1."""
        return 1

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return (n - 1) / n."""
        return (place.ranks - 1) / place.ranks

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the one phase; part r is rank r's."""
        ends = [((0, r) if kind == "scatter" else (r, 0), r) for r in range(1, place.ranks)]
        return (
            tuple(Transfer(sources=e[:1], destinations=e[1:], parts=(r,), fraction=1 / place.ranks) for e, r in ends),
        )
