"""What a cluster is like for those who belong to some of its parts: a cluster in which every node is like theirs.

condition(cluster, bits)            the GPU, its pace and its wires where these parts hold
slowest_wires([one, another])       the wires of ranks that wait for each other: the slowest of each level sets the pace
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from simulator.errors import PlanError, SimulatorError
from simulator.hardware.cluster import Cluster, Level, build_cluster, load_node
from simulator.hardware.gpu import load_gpu
from simulator.hardware.link import load_link
from simulator.hardware.parts import Part
from simulator.hardware.power import load_power_coefficients
from simulator.units import show

__all__ = ["condition", "on_wires", "plain_if_slower", "slowest_wires"]


def condition(cluster: Cluster, bits: int) -> Cluster:
    """Return the cluster as those see it who belong to the parts whose bits are set.

    Raises:
        PlanError: two of these parts name different GPUs, or a part changes wires that the job does not use.
        SpecError: a part names a GPU or node that does not exist.
    """
    out = replace(cluster, parts=())
    named: tuple[int, str] | None = None
    for number, part in enumerate(cluster.parts):
        if not bits >> number & 1:
            continue
        kind = part.gpu or part.node
        if kind is not None:
            if named is not None and named[1] != kind:
                raise PlanError(
                    f"parts of a cluster that name another gpu or node may not share a rank, but parts[{named[0]}] ({named[1]}) "
                    f"and parts[{number}] ({kind}) do"
                )
            named = (number, kind)
            out = _other_kind(out, part, number)
    for number, part in enumerate(cluster.parts):
        if bits >> number & 1:
            out = _scaled(out, part, number)
    return out


@functools.lru_cache(maxsize=64)
def plain_if_slower(cluster: Cluster) -> Cluster | None:
    """Return a cluster without its parts where none of them makes anything quicker: no step on the cluster is then quicker than on that.

    Parts are factors of at most 1, or GPUs and machines that differ in what GPUs may draw alone, which is not more.  None where that is
    not known.
    """
    for number, part in enumerate(cluster.parts):
        factors = (part.clock, part.memory_bandwidth, part.host, part.link, part.network)
        if part.gpu is not None or any(factor is not None and factor > 1.0 for factor in factors):
            return None
        if part.node is not None:
            try:
                there = condition(cluster, 1 << number)
            except SimulatorError:  # whoever simulates it says why
                return None
            alike = there.node.model_dump(exclude=_POWER) == cluster.node.model_dump(exclude=_POWER)
            if not alike or cluster.spec.calibration or there.gpu.power > cluster.gpu.power:
                return None
    return replace(cluster, parts=())


_POWER = {"name", "aliases", "sources", "notes", "gpu_power"}
"""Fields of a machine beside which two differ in the power of their GPUs alone."""


def _other_kind(cluster: Cluster, part: Part, number: int) -> Cluster:
    if part.gpu is not None:
        gpu = load_gpu(part.gpu)
        if cluster.node.powered(gpu) == cluster.gpu:
            return cluster
        wires_only = tuple(name for name in cluster.spec.calibration if name.startswith("nccl_"))
        return replace(cluster, gpu=gpu, spec=cluster.spec.model_copy(update={"calibration": wires_only}))
    node = load_node(part.node or "")
    if node == cluster.node:
        return cluster
    if node.gpus != cluster.node.gpus:
        raise PlanError(
            f"the nodes of a cluster have equally many GPUs, but parts[{number}] names node {node.name!r} with {node.gpus} and "
            f"cluster {cluster.name!r} has {cluster.node.gpus} on each. Way out: gpu and link in place of node"
        )
    if cluster.level("fabric") is not None and not node.network_link:
        raise PlanError(
            f"parts[{number}]: node {node.name!r} has no network, but the job spans {cluster.nodes} nodes. Way out: gpu "
            "and link in place of node"
        )
    spec = cluster.spec.model_copy(update={"node": node.name, "parts": (), "calibration": ()})
    network = load_link(node.network_link) if node.network_link else None
    made = build_cluster(
        spec, load_gpu(node.gpu), node, load_link(node.link), load_link(node.host_link), network, cluster.world_size
    )
    return replace(made, name=cluster.name, pace=cluster.pace)


def _scaled(cluster: Cluster, part: Part, number: int) -> Cluster:
    pace = replace(
        cluster.pace,
        clock=cluster.pace.clock * (part.clock or 1.0),
        memory_bandwidth=cluster.pace.memory_bandwidth * (part.memory_bandwidth or 1.0),
        host=cluster.pace.host * (part.host or 1.0),
    )
    levels = []
    for level in cluster.levels:
        factor = (part.network if level.name == "fabric" else part.link) or 1.0
        levels.append(level if factor == 1.0 else _slower(level, factor))
    if part.link is not None and cluster.gpus_per_node == 1:
        raise PlanError(f"parts[{number}].link is between the GPUs of a node, but the job has one GPU on each")
    if part.network is not None and cluster.level("fabric") is None:
        raise PlanError(
            f"parts[{number}].network is between nodes, but the job does not leave its {cluster.levels[-1].name}"
        )
    if part.gpu_power is not None:
        least = load_power_coefficients().idle * cluster.gpu.power
        if not least < part.gpu_power <= cluster.gpu.power:
            raise PlanError(
                f"parts[{number}].gpu_power must be above what {cluster.gpu.name} draws idle ({show(least, 'W')}) and at most its own "
                f"limit of {show(cluster.gpu.power, 'W')}, but is {show(part.gpu_power, 'W')}"
            )
        node = cluster.node.model_copy(update={"gpu_power": part.gpu_power})
        cluster = replace(cluster, node=node, gpu=node.powered(cluster.gpu))
    return replace(cluster, pace=pace, levels=tuple(levels))


def _slower(level: Level, factor: float) -> Level:
    link = level.link.model_copy(update={"bandwidth": level.link.bandwidth * factor})
    return replace(level, link=link, bandwidth=level.bandwidth * factor)


@functools.lru_cache(maxsize=1024)
def on_wires(cluster: Cluster, wires: Cluster) -> Cluster:
    """Return `cluster`'s GPUs on the wires of another."""
    if cluster.levels == wires.levels and cluster.node == wires.node:
        return cluster
    flags = {name: getattr(wires.node, name) for name in ("in_network_reduction", "peer_to_peer", "host")}
    return replace(cluster, levels=wires.levels, node=cluster.node.model_copy(update=flags))


def slowest_wires(clusters: Sequence[Cluster]) -> Cluster:
    """Return a cluster that has, of each level, the slowest wires of all: what ranks see that wait for each other.

    A switch adds up (NVLS) and GPUs reach each other directly only where all can.
    """
    first = clusters[0]
    if all(c.levels == first.levels and c.node == first.node for c in clusters):
        return first
    levels = tuple(
        min(same, key=lambda level: level.bandwidth / level.oversubscription)
        for same in zip(*(c.levels for c in clusters), strict=True)
    )
    node = first.node.model_copy(
        update={
            "in_network_reduction": all(c.node.in_network_reduction for c in clusters),
            "peer_to_peer": all(c.node.peer_to_peer for c in clusters),
        }
    )
    return replace(first, levels=levels, node=node)
