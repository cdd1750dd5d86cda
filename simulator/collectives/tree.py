"""The double binary tree: sums climb two trees, each with half of the message, and results come down again.

    nodes 0..7, first tree         0 - 4 - 2, 6       and its mirror image: who has children in one is a leaf in the
    other,
                                       2 - 1, 3       so both directions of every port stay busy.
                                       6 - 5, 7

Inside a node the ranks form a chain that ends at the head of the tree.  The latency grows with log2(nodes) instead of
n, but each byte passes the busiest port about twice.
"""

from __future__ import annotations

import functools
import math

from simulator.collectives.base import Collective, Cost, Phase, Transfer
from simulator.collectives.wires import attained, channels, hop_latency, least_volume_ceiling, offers_ll128, span
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Tree", "binary_tree"]


class Tree(Collective):
    """all_reduce over two binary trees of nodes, with chains inside the nodes."""

    name = "tree"
    aliases = ("double_binary_tree",)
    kinds = ("all_reduce",)
    automatic = True
    source = "Sanders, Speck, Traeff, Parallel Computing 35 (2009); NCCL src/graph/tuning.cc"
    pipelined = ("all_reduce",)

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """Return whether the nodes are evenly filled."""
        return kind in self.kinds and place.ranks == place.nodes * place.ranks_per_node

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return base + 2 x (the chain's hops + log2(nodes) slow hops); half the bandwidth: bytes go up and down."""
        bandwidth = self._bandwidth(place, fabric, table, protocol)
        if bandwidth is None:
            return None
        latency = 2 * (place.ranks_per_node - 1) * hop_latency(self.name, protocol, "inner", place, fabric, table)
        if place.nodes > 1:
            slow = hop_latency(self.name, protocol, "outer", place, fabric, table)
            latency += 2 * math.log2(place.nodes) * slow
        return Cost(
            latency=table.base_latency[self.name][protocol] + latency,
            bandwidth=bandwidth / 2,
            ceiling=least_volume_ceiling(place, fabric, table, protocol),
            medium=table.tree_medium[protocol],
        )

    def _bandwidth(self, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> float | None:
        """Return the bus bandwidth [B/s]; between two nodes the network carries each byte once per direction.

        NCCL's search uses that freedom (faster inside than outside) from the generation with NVLS on.
        """
        generation, column = table.generation_of(fabric), span(place)
        inner, outer = attained(place, fabric, table)
        plain = min(inner, outer * 2 if place.nodes == 2 and generation in table.nvls_tree_cap else outer)
        lanes = channels(place, fabric, table)
        if protocol == "ll":
            row = generation if column == 0 else table.ll_cap_row[fabric.host]
            return min(plain * table.efficiency["tree_ll"], table.ll_cap[row][column])
        if protocol == "ll128":
            if not offers_ll128(fabric):
                return None
            share = table.efficiency["tree_ll128_one_node" if place.nodes == 1 else "tree_ll128"]
            return min(plain * share, lanes * table.tree_ll128_cap[generation][column])
        return min(plain * table.efficiency["tree_simple"], lanes * table.tree_cap[generation][column])

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return twice the way from the far end of a chain to the root."""
        return 2 * (place.ranks_per_node - 1 + _height(place.nodes))

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return 2 (g - 1) / g of the chains plus the trees' edges at the busiest node, a half message / g each."""
        g = place.ranks_per_node
        edges = [0] * place.nodes
        for mirrored in (False, True):
            for child, parent in enumerate(binary_tree(place.nodes, mirrored)):
                if parent >= 0:
                    edges[child] += 1
                    edges[parent] += 1
        return 2 * (g - 1) / g + max(edges) / 2 / g

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the way up, by height, and the way down; of a node's g parts, part s has rank s as its head."""
        g, up = place.ranks_per_node, []
        for step in range(g - 1):
            up.append(
                [(s, (s + g - 1 - step, s + g - 2 - step), node) for s in range(g) for node in range(place.nodes)]
            )
        chain = [
            tuple(
                Transfer(
                    sources=(node * g + a % g,),
                    destinations=(node * g + b % g,),
                    parts=(2 * s, 2 * s + 1),
                    fraction=1 / g,
                    combines=True,
                )
                for s, (a, b), node in phase
            )
            for phase in up
        ]
        climb = chain + [self._climb(place, height) for height in range(_height(place.nodes))]
        return tuple(climb) + tuple(tuple(transfer.back() for transfer in phase) for phase in reversed(climb))

    @staticmethod
    def _climb(place: GroupPlacement, height: int) -> Phase:
        """Return the transfers of the nodes of this height to their parents, in both trees."""
        g, out = place.ranks_per_node, []
        for tree in (0, 1):
            parents = binary_tree(place.nodes, bool(tree))
            heights = _heights(parents)
            for node, parent in enumerate(parents):
                if parent >= 0 and heights[node] == height:
                    for s in range(g):
                        out.append(
                            Transfer(
                                sources=(node * g + s,),
                                destinations=(parent * g + s,),
                                parts=(2 * s + tree,),
                                fraction=1 / g / 2,
                                combines=True,
                            )
                        )
        return tuple(out)


@functools.lru_cache(maxsize=64)
def binary_tree(n: int, mirrored: bool = False) -> tuple[int, ...]:
    """Return the parent of each of n nodes, -1 for the root: an in-order tree, so that odd nodes are leaves.

    The second tree swaps leaves and inner nodes: mirrored for even n, turned by one for odd n.

    >>> binary_tree(8)
    (-1, 2, 4, 2, 0, 6, 4, 6)
    >>> binary_tree(4, mirrored=True)
    (1, 3, 1, -1)
    """
    parents = []
    for node in range(n):
        bit = node & -node
        above = (node ^ bit) | (bit << 1)
        parents.append(-1 if node == 0 else above if above < n else node ^ bit)
    if not mirrored:
        return tuple(parents)
    place = [n - 1 - i for i in range(n)] if n % 2 == 0 else [(i + 1) % n for i in range(n)]
    out = [-1] * n
    for node, parent in enumerate(parents):
        out[place[node]] = -1 if parent < 0 else place[parent]
    return tuple(out)


def _heights(parents: tuple[int, ...]) -> list[int]:
    """Return each node's distance from its furthest leaf."""
    heights = [0] * len(parents)
    for leaf in range(len(parents)):
        node, height = leaf, 0
        while parents[node] >= 0:
            node, height = parents[node], height + 1
            heights[node] = max(heights[node], height)
    return heights


@functools.lru_cache(maxsize=64)
def _height(nodes: int) -> int:
    """Return the height of the root; both trees have the same."""
    return max(_heights(binary_tree(nodes)))
