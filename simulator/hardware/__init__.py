"""On what: GPUs, links, nodes and clusters, read from the data files under `hardware_specs`."""

from __future__ import annotations

from simulator.hardware.cluster import Cluster, ClusterSpec, Level, Node, load_cluster, load_node
from simulator.hardware.gpu import Gpu, load_gpu
from simulator.hardware.link import Link, load_link

__all__ = [
    "Cluster",
    "ClusterSpec",
    "Gpu",
    "Level",
    "Link",
    "Node",
    "load_cluster",
    "load_gpu",
    "load_link",
    "load_node",
]
