"""NVLink SHARP: the switch adds what all GPUs send, and copies what one GPU sends to all.

Each GPU hands the switch all of its message once and receives one n-th of the sum; then it hands back that n-th and
receives the whole result.  So a port carries (n + 1) / n of the message per direction, where a ring carries 2 (n - 1) /
n. Between nodes the n-ths climb a tree (NVLSTree).
"""

from __future__ import annotations

import math

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.wires import attained, channels, hop_latency, span
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Nvls", "NvlsTree"]


def _reduces(name: str, fabric: Fabric, table: CostTable) -> bool:
    """Whether switches inside the node add: only those of a link that has such switches, whatever a node's file says."""
    return fabric.in_network_reduction and name in table.hop_latency.get(fabric.intra, ())


class Nvls(Collective):
    """all_reduce inside one NVSwitch domain."""

    name = "nvls"
    kinds = ("all_reduce",)
    automatic = True
    protocols = ("simple",)
    source = "NCCL src/graph/tuning.cc, src/transport/nvls.cc; law of the message: NVIDIA/nccl issue 1455"
    pipelined = ("all_reduce",)

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """Return whether the group lies in one node."""
        return kind in self.kinds and place.nodes == 1

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return a fixed latency and attained bandwidth x n / (n + 1)."""
        share = table.nvls_attained.get(table.generation_of(fabric))
        if share is None or place.nodes > 1 or place.ranks < 3 or not _reduces(self.name, fabric, table):
            return None
        latency = hop_latency(self.name, protocol, "inner", place, fabric, table)
        return Cost(
            latency=table.base_latency[self.name][protocol] + latency,
            bandwidth=place.inner_bandwidth(fabric) * share / self.volume(kind, place),
            ceiling=place.inner_bandwidth(fabric) / self.volume(kind, place),
        )

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return 2: to the switch and back, twice."""
        return 2

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return (n + 1) / n."""
        return (place.ranks + 1) / place.ranks

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the sums that each rank receives, then the copies that it sends to all."""
        return _to_owners(place), _to_all(place)


class NvlsTree(Collective):
    """all_reduce with NVLS inside the nodes and trees between them."""

    name = "nvls_tree"
    kinds = ("all_reduce",)
    automatic = True
    protocols = ("simple",)
    source = "NCCL src/graph/tuning.cc (NVLSTree)"
    pipelined = ("all_reduce",)

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """Return whether there are several nodes, evenly filled."""
        return kind in self.kinds and place.nodes > 1 and place.ranks == place.nodes * place.ranks_per_node

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return intra + 2 log2(nodes) slow hops; a cap per channel; two nodes may exceed the network's."""
        caps = table.nvls_tree_cap.get(table.generation_of(fabric))
        if caps is None or place.nodes < 2 or place.ranks_per_node < 3 or not _reduces(self.name, fabric, table):
            return None
        _, outer = attained(place, fabric, table)
        network = outer * (2 if place.nodes == 2 else 1)
        factor = 2 * (place.ranks - 1) / place.ranks
        inside = place.inner_bandwidth(fabric) * table.nvls_attained[table.generation_of(fabric)]
        bus = min(channels(place, fabric, table) * caps[span(place)], network, inside * factor)
        latency = hop_latency(self.name, protocol, "inner", place, fabric, table)
        latency += 2 * math.log2(place.nodes) * hop_latency(self.name, protocol, "outer", place, fabric, table)
        return Cost(
            latency=table.base_latency[self.name][protocol] + latency,
            bandwidth=bus / factor,
            ceiling=min(
                place.inner_bandwidth(fabric), place.outer_bandwidth(fabric) * place.nodes / (2 * place.nodes - 2)
            ),
        )

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return to the owner, up and down the tree, and to all."""
        return 2 + 2 * _depth(place.nodes)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return 1 + 1/g of the switch, and 1/g for each edge of the tree at its busiest node."""
        edges = min(place.nodes - 1, 2 if place.nodes < 5 else 3)
        return 1 + (1 + edges) / place.ranks_per_node

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the sums in each node, the way up and down the tree of nodes, and the copies in each node."""
        climb = [_climb(place, depth) for depth in range(_depth(place.nodes), 0, -1)]
        down = [tuple(transfer.back() for transfer in phase) for phase in reversed(climb)]
        return (_to_owners(place), *climb, *down, _to_all(place))


def _depth(nodes: int) -> int:
    """Return the depth of a binary tree filled level by level."""
    return (nodes).bit_length() - 1


def _climb(place: GroupPlacement, depth: int) -> Phase:
    """Return the transfers of the nodes at this depth (numbers 2^depth - 1 on) to their parents."""
    g = place.ranks_per_node
    nodes = range(2**depth - 1, min(2 ** (depth + 1) - 1, place.nodes))
    return tuple(
        Transfer(
            sources=(node * g + part,),
            destinations=((node - 1) // 2 * g + part,),
            parts=(part,),
            fraction=1 / g,
            combines=True,
        )
        for node in nodes
        for part in range(g)
    )


def _members(place: GroupPlacement) -> list[tuple[int, ...]]:
    g = place.ranks_per_node
    return [tuple(range(node * g, node * g + g)) for node in range(place.nodes)]


def _to_owners(place: GroupPlacement) -> Phase:
    """Return: in each node, all send part i and the switch gives rank i the sum."""
    return tuple(
        Transfer(sources=ranks, destinations=(rank,), parts=(part,), fraction=1 / len(ranks))
        for ranks in _members(place)
        for part, rank in enumerate(ranks)
    )


def _to_all(place: GroupPlacement) -> Phase:
    """Return: in each node, rank i sends part i and the switch gives it to all."""
    return tuple(
        Transfer(sources=(rank,), destinations=ranks, parts=(part,), fraction=1 / len(ranks))
        for ranks in _members(place)
        for part, rank in enumerate(ranks)
    )
