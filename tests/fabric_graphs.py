"""The wires of clusters as graphs, for tests: with any switches, links by name, and groups placed on them."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from simulator.errors import PlanError
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.fabric_graph import FabricGraph, Numbers, graph_of
from simulator.hardware.group_placement import GroupPlacement
from simulator.hardware.topology import Topology

__all__ = ["build_fabric_graph", "link_name", "place_on_graph", "without_spine"]

_NODES_PER_LEAF = 32
"""Domains whose cards share leaf switches: a scalable unit of an H100 SuperPOD (from memory, unverified)."""


def build_fabric_graph(
    cluster: Cluster,
    topology: Literal["rails", "leaf_spine"] | None = None,
    domains_per_pod: int | None = None,
    oversubscription: float | None = None,
    proxies: bool | None = None,
) -> FabricGraph:
    """The graph of a cluster's links; None = as the cluster has it, else rails, 32 nodes to a pod and no oversubscription.

    >>> from simulator.hardware.cluster import load_cluster
    >>> build_fabric_graph(load_cluster("dgx_h100", 64)).rails
    8
    """
    fabric, outer = fabric_of(cluster), cluster.level("fabric")
    ratio = oversubscription if oversubscription is not None else outer.oversubscription if outer else 1.0
    own = fabric.topology
    size = min(fabric.domain_size, cluster.world_size)
    switches = Topology(
        by_rail=(topology or cluster.spec.topology or "rails") == "rails",
        domains_per_pod=domains_per_pod or (own.domains_per_pod if own else _NODES_PER_LEAF),
        oversubscription=ratio,
        proxies=cluster.spec.pxn if proxies is None else proxies,
        rails=min(size, cluster.node.nics * max(1, size // cluster.node.gpus)) if outer else 0,
    )
    wires = dataclasses.replace(
        fabric,
        domain_size=size,
        topology=switches,
        network_bandwidth=outer.bandwidth if outer else 0.0,
        network_latency=outer.latency if outer else 0.0,
    )
    return graph_of(wires, cluster.world_size)


def link_name(graph: FabricGraph, link: int) -> str:
    """Return what a link joins.

    >>> from simulator.hardware.cluster import load_cluster
    >>> graph = build_fabric_graph(load_cluster("dgx_h100", 16))
    >>> [link_name(graph, i) for i in (0, 17, 32, 49, 64)]
    ['gpu 0 > switch 0', 'switch 0 > gpu 1', 'card 0.0 > leaf 0.0', 'leaf 0.1 > card 0.1', 'leaf 0.0 > spine']
    """
    kind = int(np.searchsorted(graph._starts, link, "right")) - 1
    number = link - int(graph._starts[kind])
    if kind < 2:
        ends = f"gpu {number}", f"switch {number // graph.domain_size}"
    elif kind < 4:
        domain, rail = divmod(number, graph.rails)
        leaf = domain // graph.domains_per_pod
        ends = f"card {domain}.{rail}", f"leaf {leaf}.{rail}" if graph.by_rail else f"leaf {leaf}"
    else:
        leaf, rail = divmod(number, graph.rails) if graph.by_rail else (number, -1)
        ends = f"leaf {leaf}.{rail}" if graph.by_rail else f"leaf {leaf}", "spine"
    return " > ".join(ends if kind % 2 == 0 else ends[::-1])


def without_spine(graph: FabricGraph) -> FabricGraph:
    """The same graph with as much bandwidth between the leaves as anyone wants."""
    if not graph.rails:
        return graph
    bandwidth = graph.bandwidth.copy()
    bandwidth[int(graph._starts[4]) :] = np.inf
    return dataclasses.replace(graph, bandwidth=bandwidth, oversubscription=1.0)


def place_on_graph(graph: FabricGraph, ranks: Numbers) -> GroupPlacement:
    """Return where a group of world ranks (in ascending order) lies on a graph.

    Raises:
        PlanError: a rank twice, none, or one that the cluster does not have.
    """
    if not len(ranks) or len(np.unique(ranks)) != len(ranks) or not 0 <= ranks.min() <= ranks.max() < graph.world_size:
        raise PlanError(
            f"a group must name ranks of 0 to {graph.world_size - 1} once each, but got {ranks[:8].tolist()}"
            f"{' ...' if len(ranks) > 8 else ''}"
        )
    held = np.unique(graph.domain_of(ranks), return_counts=True)[1]
    return GroupPlacement(
        ranks=len(ranks),
        nodes=len(held),
        ranks_per_node=int(held.max()),
        fewest_per_node=int(held.min()),
        level="fabric" if len(held) > 1 else "node",
        leaving=int(len(held) > 1),
    )
