"""What NCCL makes of the wires: bandwidth of its channels and latency of a hop, by protocol.  Used by the algorithms.

The formulas are those of NCCL's tuning model (src/graph/tuning.cc); the constants come from the cost table.
"""

from __future__ import annotations

import math

from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = [
    "attained",
    "channels",
    "chunk_seconds",
    "hop_latency",
    "least_volume_ceiling",
    "lowest_bandwidth",
    "offers_ll128",
    "peers_latency",
    "ring_bandwidth",
    "span",
    "wire_ceiling",
]


_TREES, _USUAL_HOST = ("tree", "nvls_tree"), "intel"
"""A tree's hop over the network was timed on Intel; both its ends wait for their host's proxy."""


def span(place: GroupPlacement) -> int:
    """Return the column of NCCL's caps: 0 for one node, 1 for two, 2 for more."""
    return min(place.nodes, 3) - 1


def attained(place: GroupPlacement, fabric: Fabric, table: CostTable, many_flows: bool = False) -> tuple[float, float]:
    """Return the bandwidth that the channels find (inside, out of a node) [B/s]; infinite where none is needed.

    Args:
        many_flows: each rank sends to all others, so that its flows spread evenly over all paths between the switches.
    """
    inner = outer = math.inf
    if place.ranks_per_node > 1:
        share = table.attained["staged"] if not fabric.peer_to_peer else table.attained[fabric.intra]
        inner = min(place.link_bandwidth(fabric) * share, place.socket_share(fabric, many_flows))
    if place.nodes > 1:
        outer = place.outer_bandwidth(fabric) * table.attained_network.get(
            fabric.network, table.attained_network["any"]
        )
        outer *= 1.0 if many_flows else table.share_of_paths(fabric)
    return inner, outer


def lowest_bandwidth(place: GroupPlacement, fabric: Fabric, table: CostTable) -> float:
    """Return the bandwidth of a ring of plain copies: the narrower of the wires inside and outside [B/s]."""
    return min(attained(place, fabric, table))


def wire_ceiling(place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> float:
    """Return the bus bandwidth that the bare wires allow [B/s]; LL and LL128 spend part of it on flags."""
    inner = place.inner_bandwidth(fabric) if place.ranks_per_node > 1 else math.inf
    outer = place.outer_bandwidth(fabric) if place.nodes > 1 else math.inf
    return min(inner, outer) * table.payload[protocol]


def least_volume_ceiling(place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> float:
    """Return the all_reduce bandwidth no algorithm can pass: one node of k sends 2 (k - 1) / k messages [B/s]."""
    inner = outer = math.inf
    if place.ranks_per_node > 1:
        inner = place.inner_bandwidth(fabric) * place.ranks_per_node / (2 * place.ranks_per_node - 2)
    if place.nodes > 1:
        outer = place.outer_bandwidth(fabric) * place.nodes / (2 * place.nodes - 2)
    return min(inner, outer) * table.payload[protocol]


def channels(place: GroupPlacement, fabric: Fabric, table: CostTable) -> int:
    """Return the channels that the search finds: of the GPU inside a node, else one per network card (4 to 8)."""
    if place.nodes == 1:
        return table.channels[table.generation_of(fabric)]
    own = place.outer_bandwidth(fabric) * max(place.crossing, 1.0)
    cards = math.ceil(own / fabric.card_bandwidth)
    return max(4, min(cards, 8))


def chunk_seconds(place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> float:
    """Return the seconds of one chunk of each channel on the wires between nodes: a card sends on what has arrived whole."""
    _, outer = attained(place, fabric, table)
    return table.chunk[protocol] * channels(place, fabric, table) / outer / table.payload[protocol]


def offers_ll128(fabric: Fabric) -> bool:
    """Return whether NCCL turns LL128 on: only where GPUs of a node share NVLink."""
    return fabric.intra in ("nvlink", "") and fabric.peer_to_peer


def ring_bandwidth(place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> float | None:
    """Return the bus bandwidth of a ring [B/s]; None where NCCL does not offer the protocol."""
    plain = lowest_bandwidth(place, fabric, table)
    generation, column = table.generation_of(fabric), span(place)
    if protocol == "ll":
        row = generation if column == 0 else table.ll_cap_row[fabric.host]
        return min(table.ll_cap[row][column], plain * table.efficiency["ring_ll"])
    if protocol == "ll128":
        if not offers_ll128(fabric):
            return None
        alone = place.ranks_per_node < 2
        share = table.efficiency["ring_ll128_one_per_node" if alone else "ring_ll128"]
        return min(plain * share, channels(place, fabric, table) * table.ring_ll128_cap[generation][column])
    return plain


def hop_latency(
    algorithm: str, protocol: str, where: str, place: GroupPlacement, fabric: Fabric, table: CostTable
) -> float:
    """Return the seconds of one hop, "inner" (a ring's with the host's part when the group spans nodes) or "outer"."""
    if where == "outer":
        lone_ring = algorithm == "ring" and place.ranks_per_node == 1
        own = table.hop_latency["network"]["tree" if lone_ring else algorithm][protocol]
        if algorithm in _TREES:
            own += 2 * (table.host_overhead[fabric.host][protocol] - table.host_overhead[_USUAL_HOST][protocol])
        return own + fabric.network_latency * (2 if protocol == "simple" else 1)
    technology = fabric.intra if fabric.intra in table.hop_latency else "pcie"
    own = table.hop_latency[technology][algorithm][protocol]
    spans = algorithm == "ring" and place.nodes > 1
    return max(own, table.host_overhead[fabric.host][protocol]) if spans else own


def peers_latency(peers: int, protocol: str, place: GroupPlacement, fabric: Fabric, table: CostTable) -> float:
    """Return the seconds that sends to `peers` outside the node take to start: the host's part for each, the network's once,
    as they travel at the same time."""
    beyond = fabric.network_latency * (2 if protocol == "simple" else 1)
    return peers * (hop_latency("pairwise", protocol, "outer", place, fabric, table) - beyond) + beyond
