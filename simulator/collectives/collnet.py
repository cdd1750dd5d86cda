"""CollNet (SHARP): the network's switches add what the nodes send, and send back the sum.

Inside a node rank j collects part j, directly over NVSwitch or down a chain; the heads of all nodes send their parts to
the switches at once and receive the sums.  However many nodes there are, a card carries its part once each way.
"""

from __future__ import annotations

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.wires import attained
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement
from simulator.units import parse

__all__ = ["CollnetChain", "CollnetDirect"]

DIRECT_INSIDE, DIRECT_NETWORK = parse("3.7 us", "s"), parse("31 us", "s")
DIRECT_PER_PEER = parse("0.4 us", "s")
CHAIN_INSIDE, CHAIN_NETWORK = parse("2.8 us", "s"), parse("30 us", "s")
DIRECT_SHARE = 0.85
"""NCCL 2.28.9, src/graph/tuning.cc: latency of a hop inside a node and over the network, what each peer adds, and the
share of the bandwidth that is left from Hopper on."""


class _Collnet(Collective):
    """What both forms share: where NCCL offers them, and the part that the network plays."""

    kinds = ("all_reduce",)
    protocols = ("simple",)
    pipelined = ("all_reduce",)

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """Return whether there are several nodes, evenly filled."""
        return kind in self.kinds and place.nodes > 1 and place.ranks == place.nodes * place.ranks_per_node

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return 2 (g - 1) / g inside the node and 1 / g of the network."""
        return (2 * (place.ranks_per_node - 1) + 1) / place.ranks_per_node

    def _cost(self, latency: float, share: float, place: GroupPlacement, fabric: Fabric, table: CostTable) -> Cost:
        """Return the cost of this latency: the narrower of the wires inside (2 (g - 1) / g) and outside (1)."""
        inner, outer = attained(place, fabric, table)
        used = 2 * (place.ranks_per_node - 1) / place.ranks_per_node
        bare = place.inner_bandwidth(fabric) / used if used else place.outer_bandwidth(fabric)
        inside = inner / used if used else outer
        return Cost(
            latency=latency + 2 * fabric.network_latency,
            bandwidth=min(inside, outer) * share,
            ceiling=min(bare, place.outer_bandwidth(fabric)),
        )


class CollnetDirect(_Collnet):
    """all_reduce in the network's switches, with NVSwitch inside the nodes."""

    name = "collnet_direct"
    automatic = True
    aliases = ("collnet", "sharp")
    source = "NCCL 2.28.9, src/graph/tuning.cc (CollNetDirect)"

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return 2 short hops with a little per peer and one through the network."""
        if not (self.works(kind, place) and fabric.network_reduction and fabric.switched and fabric.intra == "nvlink"):
            return None
        peers = place.ranks_per_node - 1
        latency = 2 * (min(1, peers) * DIRECT_INSIDE + peers * DIRECT_PER_PEER) + DIRECT_NETWORK
        share = DIRECT_SHARE if table.generation_of(fabric) in table.nvls_attained else 1.0
        return self._cost(latency, share, place, fabric, table)

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return to the head, through the network, and to all."""
        return 3 if place.ranks_per_node > 1 else 1

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the sends to the heads, the sum in the network, and the copies from the heads."""
        ranks = range(place.ranks_per_node)
        collect = tuple(
            Transfer(
                sources=(first + i,), destinations=(first + j,), parts=(j,), fraction=1 / len(ranks), combines=True
            )
            for first in _firsts(place)
            for i in ranks
            for j in ranks
            if i != j
        )
        middle = _network(place)
        return (collect, middle, tuple(transfer.back() for transfer in collect)) if collect else (middle,)


class CollnetChain(_Collnet):
    """all_reduce in the network's switches, with chains inside the nodes."""

    name = "collnet_chain"
    automatic = True
    source = "NCCL 2.28.9, src/graph/tuning.cc (CollNetChain)"

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return twice the chain's hops and one through the network."""
        if not (self.works(kind, place) and fabric.network_reduction):
            return None
        return self._cost(2 * (place.ranks_per_node - 1) * CHAIN_INSIDE + CHAIN_NETWORK, 1.0, place, fabric, table)

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return twice the chain and once the network."""
        return 2 * (place.ranks_per_node - 1) + 1

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the chains that end at the heads, the sum in the network, and the chains back."""
        g = place.ranks_per_node
        climb = [
            tuple(
                Transfer(
                    sources=(first + (j + step) % g,),
                    destinations=(first + (j + step - 1) % g,),
                    parts=(j,),
                    fraction=1 / g,
                    combines=True,
                )
                for first in _firsts(place)
                for j in range(g)
            )
            for step in range(g - 1, 0, -1)
        ]
        down = [tuple(transfer.back() for transfer in phase) for phase in reversed(climb)]
        return (*climb, _network(place), *down)


def _firsts(place: GroupPlacement) -> range:
    """Return the first rank of each node."""
    return range(0, place.ranks, place.ranks_per_node)


def _network(place: GroupPlacement) -> Phase:
    """Return: of each part, the heads of all nodes send and all receive the sum."""
    heads = [tuple(first + j for first in _firsts(place)) for j in range(place.ranks_per_node)]
    return tuple(
        Transfer(sources=ranks, destinations=ranks, parts=(j,), fraction=1 / len(heads))
        for j, ranks in enumerate(heads)
    )
