"""The wires of a cluster one by one: ports of GPUs, network cards, leaf and spine switches, and who uses which.

    GPU -> NVSwitch -> GPU                                   inside a domain (a node, or a rack on one link)
    GPU -> card -> leaf [-> spine -> leaf] -> card -> GPU    between domains

Rails: card r of every node of a pod hangs on leaf r, so that ranks of equal place in their nodes meet after one switch.
Leaf and spine: all cards of a node hang on one leaf.  A byte for a GPU of another rail first crosses NVSwitch to the GPU
at that rail's card (PXN), unless that is turned off.  All ways from a leaf to the spine count as one wide link, which
assumes that the network spreads flows well; so do the direct links of GPUs without a switch between them.  Bandwidths
and latencies are the data sheets': what NCCL makes of them is the matter of `simulator.collectives`.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.errors import PlanError
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import Fabric, GroupPlacement, fabric_of
from simulator.hardware.topology import Topology

__all__ = ["NODES_PER_LEAF", "FabricGraph", "Flows", "build_fabric_graph", "graph_of", "place_on_graph"]

Numbers = NDArray[np.int64]

NODES_PER_LEAF = 32
"""Domains whose cards share leaf switches: a scalable unit of an H100 SuperPOD (from memory, unverified)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """Flows and the links they use: flow `flow[i]` uses link `link[i]`; `latency` [s] of each flow."""

    flow: Numbers
    link: Numbers
    latency: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FabricGraph:
    """Links with their bandwidth, and the route of every flow.

    Args:
        name: of the cluster.
        world_size: GPUs.
        domain_size: GPUs that share an inner link.
        rails: network cards of a domain, bundled when it has more cards than GPUs; 0 without a network.
        domains_per_pod: domains of a full pod.
        by_rail: one leaf per pod and rail, else one per pod.
        proxies: whether PXN is on.
        inner_latency, outer_latency: of a flow inside, between domains [s].
        oversubscription: of the leaves.
        bandwidth: [links] one direction [B/s].
    """

    name: str
    world_size: int
    domain_size: int
    rails: int
    domains_per_pod: int
    by_rail: bool
    proxies: bool
    inner_latency: float
    outer_latency: float
    oversubscription: float
    bandwidth: NDArray[np.float64]
    _starts: Numbers = field(repr=False)

    @property
    def port_bandwidth(self) -> float:
        """One GPU's port inside its domain, one direction [B/s]."""
        return float(self.bandwidth[0])

    @property
    def card_bandwidth(self) -> float:
        """One rail's card or bundle of cards, one direction [B/s]; 0 without a network."""
        return float(self.bandwidth[self._starts[2]]) if self.rails else 0.0

    def link_name(self, link: int) -> str:
        """Return what a link joins.

        >>> from simulator.hardware.cluster import load_cluster
        >>> graph = build_fabric_graph(load_cluster("dgx_h100", 16))
        >>> [graph.link_name(i) for i in (0, 17, 32, 49, 64)]
        ['gpu 0 > switch 0', 'switch 0 > gpu 1', 'card 0.0 > leaf 0.0', 'leaf 0.1 > card 0.1', 'leaf 0.0 > spine']
        """
        kind = int(np.searchsorted(self._starts, link, "right")) - 1
        number = link - int(self._starts[kind])
        if kind < 2:
            ends = f"gpu {number}", f"switch {number // self.domain_size}"
        elif kind < 4:
            domain, rail = divmod(number, self.rails)
            leaf = domain // self.domains_per_pod
            ends = f"card {domain}.{rail}", f"leaf {leaf}.{rail}" if self.by_rail else f"leaf {leaf}"
        else:
            leaf, rail = divmod(number, self.rails) if self.by_rail else (number, -1)
            ends = f"leaf {leaf}.{rail}" if self.by_rail else f"leaf {leaf}", "spine"
        return " > ".join(ends if kind % 2 == 0 else ends[::-1])

    @property
    def inner_links(self) -> int:
        """How many links lie inside domains; they are the first."""
        return int(self._starts[2]) if self.rails else len(self.bandwidth)

    def without_spine(self) -> FabricGraph:
        """Return the same graph with as much bandwidth between the leaves as anyone wants."""
        if not self.rails:
            return self
        bandwidth = self.bandwidth.copy()
        bandwidth[int(self._starts[4]) :] = np.inf
        return dataclasses.replace(self, bandwidth=bandwidth, oversubscription=1.0)

    def domain_of(self, ranks: Numbers) -> Numbers:
        """Return the domain of each world rank."""
        return ranks // self.domain_size

    def rail_of(self, ranks: Numbers) -> Numbers:
        """Return the rail of each world rank's own card."""
        return ranks % self.domain_size * self.rails // self.domain_size

    def routes(
        self, source: Numbers, source_flow: Numbers, destination: Numbers, destination_flow: Numbers, flows: int
    ) -> Flows:
        """Return the links of flows, given as columns of world ranks; flows of several ranks end in a switch that adds.

        Raises:
            PlanError: a rank that the cluster does not have; a flow between domains without a network.
        """
        ranks = np.concatenate([source, destination])
        if len(ranks) and not 0 <= ranks.min() <= ranks.max() < self.world_size:
            raise PlanError(
                f"cluster {self.name!r} has ranks 0 to {self.world_size - 1}, but a flow names {ranks.max()}"
            )
        paired = len(source) == len(destination) == flows
        if paired:
            crosses, flow, link = self._paired(source, destination)
        else:
            crosses, flow, link = self._many(source, source_flow, destination, destination_flow, flows)
        if not self.rails and crosses.any():
            raise PlanError(
                f"a flow leaves its domain of {self.domain_size} GPUs, but cluster {self.name!r} has no network there"
            )
        latency = np.where(crosses, self.outer_latency, self.inner_latency)
        return Flows(flow=flow, link=link, latency=latency)

    def _paired(self, a: Numbers, b: Numbers) -> tuple[NDArray[np.bool_], Numbers, Numbers]:
        """Return which flows cross, and (flow, link) of flows from one rank to one other."""
        numbers = np.arange(len(a))
        crosses = self.domain_of(a) != self.domain_of(b)
        near = a - a % self.domain_size + b % self.domain_size
        meets = np.where(crosses, near if self.proxies else a, b)
        if self.proxies and self.rails:
            meets = np.where(crosses & (self.rail_of(a) == self.rail_of(b)), a, meets)
        inside = meets != a
        flow, link = [numbers[inside]] * 2, [a[inside], self._starts[1] + meets[inside]]
        if self.rails:
            far = numbers[crosses]
            up, down = self._card(meets[crosses]), self._card(b[crosses])
            flow, link = [*flow, far, far], [*link, self._starts[2] + up, self._starts[3] + down]
            first, last = self._leaf(up), self._leaf(down)
            over = first != last
            flow, link = (
                [*flow, far[over], far[over]],
                [*link, self._starts[4] + first[over], self._starts[5] + last[over]],
            )
        return crosses, np.concatenate(flow), np.concatenate(link)

    def _many(
        self, source: Numbers, source_flow: Numbers, destination: Numbers, destination_flow: Numbers, flows: int
    ) -> tuple[NDArray[np.bool_], Numbers, Numbers]:
        """Return the same of flows with many ends: each rank's port or, if the flow crosses, its card; both ways."""
        domain = self.domain_of(np.concatenate([source, destination]))
        number = np.concatenate([source_flow, destination_flow])
        low, high = np.full(flows, self.world_size), np.zeros(flows, np.int64)
        np.minimum.at(low, number, domain)
        np.maximum.at(high, number, domain)
        crosses = low != high
        spine = low // self.domains_per_pod != high // self.domains_per_pod
        flow, link = [], []
        for way, ranks, of in ((0, source, source_flow), (1, destination, destination_flow)):
            out = crosses[of]
            flow.append(of[~out])
            link.append(self._starts[way] + ranks[~out])
            if self.rails:
                card = self._card(ranks[out])
                flow.append(of[out])
                link.append(self._starts[2 + way] + card)
                over = spine[of[out]]
                flow.append(of[out][over])
                link.append(self._starts[4 + way] + self._leaf(card[over]))
        pairs = np.unique(np.stack([np.concatenate(flow), np.concatenate(link)]), axis=1)
        return crosses, pairs[0], pairs[1]

    def _card(self, ranks: Numbers) -> Numbers:
        return self.domain_of(ranks) * self.rails + self.rail_of(ranks)

    def _leaf(self, cards: Numbers) -> Numbers:
        pod = cards // self.rails // self.domains_per_pod
        return pod * self.rails + cards % self.rails if self.by_rail else pod


def build_fabric_graph(
    cluster: Cluster,
    topology: Literal["rails", "leaf_spine"] | None = None,
    domains_per_pod: int | None = None,
    oversubscription: float | None = None,
    proxies: bool | None = None,
) -> FabricGraph:
    """Return the graph of a cluster's links.

    Args:
        cluster: at the size that is wanted.
        topology: "rails" (leaf r holds card r of the nodes of a pod), or "leaf_spine" (a leaf holds all cards); None =
            the cluster's, else "rails".
        domains_per_pod: nodes (or racks on one link) that share leaves; None = the cluster's, else `NODES_PER_LEAF`.
        oversubscription: bandwidth into a leaf over bandwidth out of it to the spine; None = the cluster's.
        proxies: PXN, see above; None = the cluster's.

    Raises:
        PlanError: an unknown topology, no node per pod, or an oversubscription below 1.

    >>> from simulator.hardware.cluster import load_cluster
    >>> build_fabric_graph(load_cluster("dgx_h100", 64)).rails
    8
    """
    fabric, outer = fabric_of(cluster), cluster.level("fabric")
    ratio = oversubscription if oversubscription is not None else outer.oversubscription if outer else 1.0
    own = fabric.topology
    topology = topology or cluster.spec.topology or "rails"
    if domains_per_pod is None:
        domains_per_pod = own.domains_per_pod if own else NODES_PER_LEAF
    if topology not in ("rails", "leaf_spine") or domains_per_pod < 1 or not 1 <= ratio < np.inf:
        raise PlanError(
            f"topology must be 'rails' or 'leaf_spine', with at least one node per pod and an oversubscription of at "
            f"least 1, but got {topology!r}, {domains_per_pod} and {ratio}"
        )
    size = min(fabric.domain_size, cluster.world_size)
    switches = Topology(
        by_rail=topology == "rails",
        domains_per_pod=domains_per_pod,
        oversubscription=ratio,
        proxies=cluster.spec.pxn if proxies is None else proxies,
        rails=min(size, cluster.node.nics * max(1, size // cluster.node.gpus)) if outer else 0,
    )
    latency = outer.latency if outer else 0.0
    return _graph(cluster.name, cluster.world_size, size, switches, fabric, outer.bandwidth if outer else 0.0, latency)


@functools.lru_cache(maxsize=32)
def graph_of(fabric: Fabric, world: int) -> FabricGraph:
    """Return the graph of `world` GPUs on wires whose topology is known.

    Raises:
        PlanError: the fabric has no topology.
    """
    if fabric.topology is None:
        raise PlanError("these wires have no topology: a cluster's file gives one with topology and nodes_per_pod")
    size, switches = fabric.domain_size, fabric.topology
    return _graph("", world, size, switches, fabric, fabric.network_bandwidth, fabric.network_latency)


def _graph(
    name: str, world: int, size: int, switches: Topology, fabric: Fabric, bandwidth: float, latency: float
) -> FabricGraph:
    """Return the graph; `bandwidth` of the network per GPU [B/s], `latency` of a flow through it [s]."""
    rails, per_pod = switches.rails, switches.domains_per_pod
    domains = -(-world // size)
    pods = -(-domains // per_pod)
    port = np.full(world, fabric.intra_bandwidth)
    width = bandwidth * size / rails if rails else 0.0
    card = np.full(domains * rails, width)
    filled = np.minimum(per_pod, domains - np.arange(pods) * per_pod).astype(np.float64)
    uplinks = np.repeat(filled, rails) if switches.by_rail else filled * rails
    leaf = uplinks * width / switches.oversubscription
    groups = [port, port, card, card, leaf, leaf] if rails else [port, port]
    return FabricGraph(
        name=name,
        world_size=world,
        domain_size=size,
        rails=rails,
        domains_per_pod=per_pod,
        by_rail=switches.by_rail,
        proxies=switches.proxies,
        inner_latency=fabric.intra_latency,
        outer_latency=latency,
        oversubscription=switches.oversubscription,
        bandwidth=np.concatenate(groups),
        _starts=np.cumsum([0, *(len(group) for group in groups[:-1])]),
    )


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
