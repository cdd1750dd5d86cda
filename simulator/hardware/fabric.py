"""The wires of a cluster as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from simulator.hardware.host import load_host_coefficients
from simulator.hardware.topology import Topology
from simulator.remembered import hashed_once

if TYPE_CHECKING:
    from simulator.hardware.cluster import Cluster

__all__ = ["BACKENDS", "Backend", "Fabric", "fabric_of"]


Backend = Literal["nccl", "gloo"]
BACKENDS = get_args(Backend)


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The wires of a cluster as plain numbers: hashable, so that prices can be remembered.

    Args:
        architecture: of the GPU, such as "ampere".
        intra: technology inside a domain: "nvlink", "pcie", "xgmi"; "" for one GPU per node.
        intra_bandwidth: one direction, per GPU [B/s].
        intra_latency: one hop [s].
        switched: a GPU reaches any peer with its whole bandwidth; otherwise each peer has its own equal part of it.
        node_size: GPUs per node.
        domain_size: GPUs per domain (a node, or a rack of nodes on one link).
        peer_to_peer: false where traffic between GPUs is staged through host memory.
        in_network_reduction: the switch inside the domain adds (NVLS).
        network: technology between domains; "" without one.
        network_bandwidth: one direction, per GPU, above the leaf too [B/s].
        card_bandwidth: one network card, one direction [B/s].
        network_latency: what a hop takes beyond an ordinary network of its kind [s].
        host: "intel", "amd" or "arm".
        calibration: names of profiles to use, whatever they say they apply to.
        algorithms: (collective, names) of the algorithms to choose from, where the cluster names some.
        network_reduction: the switches between the domains add (SHARP).
        topology: the switches between the domains; None = nobody told.
        cards: network cards of all nodes of the job; 0 = of a benchmark, which has the switches to itself.
        backend: the library that a framework calls: the vendor's ("nccl" and its ports), or "gloo", through host memory.
        host_rate: what loops of a host move in its memory [B/s]; 0 = the node's file does not say.
        first: the world rank at which the meshes begin that are placed on the wires.
        torus: dimensions of the torus that the network is; 0 = none.
        socket_bandwidth: what passes from one half of a node's GPUs to the other, all together, one direction [B/s]; 0 = what links do.
    """

    architecture: str
    intra: str
    intra_bandwidth: float
    intra_latency: float
    switched: bool
    node_size: int
    domain_size: int
    peer_to_peer: bool
    in_network_reduction: bool
    network: str
    network_bandwidth: float
    card_bandwidth: float
    network_latency: float
    host: str = "intel"
    calibration: tuple[str, ...] = ()
    algorithms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    network_reduction: bool = False
    topology: Topology | None = None
    cards: int = 0
    backend: Backend = "nccl"
    host_rate: float = 0.0
    first: int = 0
    torus: int = 0
    socket_bandwidth: float = 0.0

    def through_host(self, rate: float) -> Fabric:
        """Return the wires of a library that copies messages through host memory: no rank gets more of any than a thread moves.

        Args:
            rate: of a thread of the host [B/s].
        """
        return replace(
            self,
            intra="host" if self.intra else "",
            intra_bandwidth=min(self.intra_bandwidth, rate),
            switched=True,
            peer_to_peer=True,
            in_network_reduction=False,
            network_bandwidth=min(self.network_bandwidth, rate),
            card_bandwidth=min(self.card_bandwidth, rate),
            network_reduction=False,
            socket_bandwidth=0.0,
        )


def fabric_of(cluster: Cluster, backend: Backend = "nccl") -> Fabric:
    """Return the plain numbers of a cluster's wires, as a library uses them."""
    levels = cluster.levels
    node, outer = levels[0], next((level for level in levels if level.name == "fabric"), None)
    domain = next((level for level in levels if level.name == "rack"), node)
    single = domain.size == 1
    topology = _topology(cluster, domain.size) if outer else None
    blunt = outer.oversubscription if outer and topology is None else 1.0
    return Fabric(
        architecture=cluster.gpu.architecture,
        intra="" if single else domain.link.technology,
        intra_bandwidth=domain.bandwidth,
        intra_latency=domain.latency,
        switched=domain.link.switched or domain.link.technology == "pcie",
        node_size=node.size,
        domain_size=domain.size,
        peer_to_peer=cluster.node.peer_to_peer,
        in_network_reduction=cluster.node.in_network_reduction,
        network=outer.link.technology if outer else "",
        network_bandwidth=outer.bandwidth / blunt if outer else 0.0,
        card_bandwidth=outer.link.bandwidth / blunt if outer else 0.0,
        network_latency=cluster.spec.network_latency if outer else 0.0,
        host=cluster.node.host,
        calibration=tuple(cluster.calibration),
        algorithms=tuple(cluster.spec.algorithms.items()),
        network_reduction=cluster.spec.in_network_reduction and outer is not None,
        topology=topology,
        cards=cluster.nodes * cluster.node.nics if outer else 0,
        backend=backend,
        host_rate=(cluster.node.host_memory_bandwidth or 0.0) * load_host_coefficients().stream_fraction,
        torus=outer.link.torus if outer else 0,
        socket_bandwidth=(cluster.node.socket_bandwidth or 0.0) if domain.link.technology == "pcie" else 0.0,
    )


def _topology(cluster: Cluster, domain_size: int) -> Topology | None:
    spec, gpus = cluster.spec, cluster.node.gpus
    if not spec.topology or spec.nodes_per_pod is None:
        return None
    return Topology(
        by_rail=spec.topology == "rails",
        domains_per_pod=max(1, spec.nodes_per_pod * gpus // domain_size),
        oversubscription=spec.oversubscription,
        proxies=spec.pxn,
        rails=min(domain_size, cluster.node.nics * max(1, domain_size // gpus)),
    )
