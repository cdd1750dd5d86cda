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

import functools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.errors import PlanError
from simulator.hardware.fabric import Fabric

__all__ = ["FabricGraph", "Flows", "graph_of"]

Numbers = NDArray[np.int64]


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
    def card_bandwidth(self) -> float:
        """One rail's card or bundle of cards, one direction [B/s]; 0 without a network."""
        return float(self.bandwidth[self._starts[2]]) if self.rails else 0.0

    @property
    def inner_links(self) -> int:
        """How many links lie inside domains; they are the first."""
        return int(self._starts[2]) if self.rails else len(self.bandwidth)

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
            raise PlanError(f"a cluster has ranks 0 to {self.world_size - 1}, but a flow names {ranks.max()}")
        paired = len(source) == len(destination) == flows
        if paired:
            crosses, flow, link = self._paired(source, destination)
        else:
            crosses, flow, link = self._many(source, source_flow, destination, destination_flow, flows)
        if not self.rails and crosses.any():
            raise PlanError(f"a flow leaves its domain of {self.domain_size} GPUs, but there is no network")
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


@functools.lru_cache(maxsize=32)
def graph_of(fabric: Fabric, world: int) -> FabricGraph:
    """Return the graph of `world` GPUs on wires whose topology is known.

    Raises:
        PlanError: the fabric has no topology.
    """
    if fabric.topology is None:
        raise PlanError("these wires have no topology: a cluster's file gives one with topology and nodes_per_pod")
    size, switches = fabric.domain_size, fabric.topology
    rails, per_pod = switches.rails, switches.domains_per_pod
    domains = -(-world // size)
    pods = -(-domains // per_pod)
    port = np.full(world, fabric.intra_bandwidth)
    width = fabric.network_bandwidth * size / rails if rails else 0.0
    card = np.full(domains * rails, width)
    filled = np.minimum(per_pod, domains - np.arange(pods) * per_pod).astype(np.float64)
    uplinks = np.repeat(filled, rails) if switches.by_rail else filled * rails
    leaf = uplinks * width / switches.oversubscription
    groups = [port, port, card, card, leaf, leaf] if rails else [port, port]
    return FabricGraph(
        world_size=world,
        domain_size=size,
        rails=rails,
        domains_per_pod=per_pod,
        by_rail=switches.by_rail,
        proxies=switches.proxies,
        inner_latency=fabric.intra_latency,
        outer_latency=fabric.network_latency,
        oversubscription=switches.oversubscription,
        bandwidth=np.concatenate(groups),
        _starts=np.cumsum([0, *(len(group) for group in groups[:-1])]),
    )
