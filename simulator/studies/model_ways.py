"""A model on a cluster as a graph of costs: for every kind of layer the ways to run it on 1, 2, 4, ... GPUs, by Alpa's inner programme.

model --kinds of layers--> layouts on every mesh of so many GPUs --integer programme--> bytes moved --prices of the cluster--> seconds

A way is a division of a layer's operations over a mesh of one axis or two, as few bytes moved as can be, once without asking for memory
and once with little, each with the layer's outputs kept and with only its input kept.  Of a microbatch it takes

    seconds of its operations on one GPU / GPUs  +  bytes moved x seconds a byte

for every operation is divided as often as there are GPUs; what smaller products cost more is not asked.  A byte costs what it does in an
all_reduce of the layer's input.  Gradients are added up once a step, so a microbatch pays its share.  A GPU holds its part of the weights
and their gradients, and of the optimizer's states and the fp32 weights (12 B a weight, Adam) an n-th of all, for what replicas would hold
twice is divided among them.  What stands while one layer is made again is not counted.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from simulator.collectives import collective_seconds
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import place_group
from simulator.partition.derive import derive
from simulator.partition.layout import Layout, Mesh
from simulator.planners.alpa_layout import AlpaLayout
from simulator.planners.problems.layouts import Choices, Layouts, make_layouts
from simulator.planners.problems.meshes import Meshes
from simulator.studies.layout_figures import Block, model_blocks
from simulator.studies.layout_seconds import op_seconds
from simulator.workload.cost_graph import CostEdge, CostGraph, CostNode, CostWay
from simulator.workload.graph import LayerGraph
from simulator.workload.model import Model

__all__ = ["make_meshes", "model_ways"]

_STATES = 12.0
"""B a weight: fp32 weight and two moments of Adam."""
_NEAR = 1.05
"""Times the least memory that a division may hold which is to need little."""


def make_meshes(
    model: Model, cluster: str, devices: int, microbatch: int, microbatches: int, memory: float | None = None
) -> Meshes:
    """Return the problem of cutting a model into stages on parts of a cluster.

    Args:
        cluster: its name.
        devices: GPUs that may be used.
        microbatch: sequences; `microbatches`: of a step.
        memory: B of a GPU for weights, states and activations; None = all that it can use.

    Raises:
        SpecError: a number is below 1, the cluster has fewer GPUs, or a layer cannot be divided.
    """
    if min(devices, microbatch, microbatches) < 1:
        raise SpecError(
            f"stages need 1 GPU, 1 sequence and 1 microbatch or more, got {devices}, {microbatch} and {microbatches}"
        )
    known = load_cluster(cluster)
    if devices > known.world_size:
        raise SpecError(f"cluster {known.name!r} has {known.world_size} GPUs, got {devices}. Way out: a larger cluster")
    graph = model_ways(model, cluster, devices, microbatch, microbatches)
    return Meshes(
        graph=graph,
        devices=devices,
        memory=known.gpu.usable_memory if memory is None else memory,
        bandwidth=_bandwidth(cluster, max(way.gathers[0] for way in graph.nodes[-1].ways)),
        microbatches=microbatches,
    )


def model_ways(model: Model, cluster: str, devices: int, microbatch: int, microbatches: int) -> CostGraph:
    """Return a node per layer with its ways.

    Args:
        devices: at most so many share a layer.
        microbatch: sequences; `microbatches`: of a step.

    Raises:
        SpecError: the cluster has fewer GPUs, or a layer cannot be divided.
    """
    if model.encoder_layers or model.mtp_layers or model.architecture == "network":
        raise SpecError(
            f"stages are cut from one row of layers between an embedding and a head, which {model.name!r} is not. "
            "Way out: a decoder, such as gpt3_2_7b"
        )
    model_kinds = ("embedding", *model.layer_kinds, "head")
    blocks = {block.kind: block for block in model_blocks(model, microbatch, model.usual_length, model.vocabulary)}
    size = blocks["head"].graph.inputs[0].bytes
    ways = {kind: _ways(blocks[kind], size, cluster, devices, microbatches) for kind in dict.fromkeys(model_kinds)}
    nodes = [CostNode(name="0", kind="embedding", ways=tuple(replace(way, gathers=()) for way in ways["embedding"]))]
    nodes += [CostNode(name=str(n), kind=kind, ways=ways[kind]) for n, kind in enumerate(model.layer_kinds, 1)]
    last = tuple(replace(way, scatters=()) for way in ways["head"])
    nodes.append(CostNode(name=str(len(nodes)), kind="head", ways=last))
    edges = tuple(CostEdge(source=a, target=a + 1) for a in range(len(nodes) - 1))
    return CostGraph(name=model.name, nodes=tuple(nodes), edges=edges)


def _ways(block: Block, size: float, cluster: str, devices: int, microbatches: int) -> tuple[CostWay, ...]:
    """All ways of a kind of layer; a message of `size` bytes comes in by as many parts as there are GPUs."""
    one = (("one", 1),)
    alone = op_seconds(
        derive(block.graph, Layout("whole", one, ())), one, cluster, load_cluster(cluster).gpu.usual_precision
    )
    forward, backward = (math.fsum(getattr(op, which) for op in alone) for which in ("forward", "backward"))
    parameters = math.fsum(tensor.bytes / tensor.element for tensor in block.graph.weights)
    found = {}
    for mesh in _meshes(devices):
        gpus = math.prod(ranks for _, ranks in mesh)
        for division in _divisions(block.graph, mesh, microbatches):
            moved = division.moved * _byte_seconds(cluster, gpus, size) if gpus > 1 else 0.0
            for recomputed in (False, True):
                way = CostWay(
                    kind=division.words + ", recomputed" * recomputed,
                    tensor=gpus,
                    seconds=(forward * (1 + recomputed) + backward) / gpus + moved,
                    parameters=division.weights,
                    kept=size / gpus if recomputed else division.made,
                    held=2 * division.weights + _STATES * parameters / gpus,
                    gathers=(size / gpus,),
                    scatters=(0.0,),
                )
                found[way.kind, way.tensor] = way
    return tuple(way for way in found.values() if not any(_beats(other, way) for other in found.values()))


def _beats(one: CostWay, other: CostWay) -> bool:
    """Whether a way on as many GPUs is no worse in anything and better in something."""
    ours, theirs = ((way.seconds, way.kept, way.held) for way in (one, other))
    return one.tensor == other.tensor and ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


class _Division(NamedTuple):
    """What a division moves over all GPUs, and what each holds of weights and of what operations make [B]."""

    words: str
    moved: float
    weights: float
    made: float


def _divisions(graph: LayerGraph, mesh: Mesh, microbatches: int) -> Iterator[_Division]:
    """The division that moves least, and the one that does so with nearly the least memory; gradients are added up once a step."""
    if not mesh:
        made = math.fsum(tensor.bytes for op in graph.ops for tensor in op.outputs)
        yield _Division("whole", 0.0, math.fsum(tensor.bytes for tensor in graph.weights), made)
        return
    problem = make_layouts(graph, mesh)
    problem = replace(problem, costs=tuple(one / microbatches for one in problem.costs))
    least = math.fsum(float(held.min()) for held in problem.held)
    for memory in (math.inf, _NEAR * least):
        try:
            plan = AlpaLayout().solve(replace(problem, memory=memory)).plan
        except PlanError:
            continue
        weights = math.fsum(held[choice] for held, choice in zip(problem.weights, plan, strict=True))
        yield _Division(
            words=_words(problem, plan, mesh),
            moved=problem.moved(plan),
            weights=weights,
            made=problem.bytes_held(plan) - weights,
        )


def _meshes(devices: int) -> Iterator[Mesh]:
    """Meshes of one axis or two, of powers of two."""
    powers = [2**n for n in range(devices.bit_length())]
    for inner, outer in itertools.combinations_with_replacement(powers, 2):
        if inner * outer <= devices:
            yield tuple((axis, ranks) for axis, ranks in (("x", inner), ("y", outer)) if ranks > 1)


def _words(problem: Layouts, plan: Choices, mesh: Mesh) -> str:
    """What every axis divides, in the order of the operations."""
    divided = [one for choices, choice in zip(problem.divides, plan, strict=True) for one in choices[choice]]
    said = []
    for axis, ranks in mesh:
        names = dict.fromkeys(one.dimension for one in divided if one.axis == axis)
        said.append(f"{ranks} {'+'.join(names)}")
    return " x ".join(said)


@functools.lru_cache(maxsize=64)
def _byte_seconds(cluster: str, gpus: int, size: float) -> float:
    """Seconds a byte that neighbours move, all together, in an all_reduce of a tensor."""
    fabric = fabric_of(load_cluster(cluster))
    took = collective_seconds("all_reduce", size, place_group((("x", gpus),), ("x",), fabric), fabric).seconds
    return took / (2 * (gpus - 1) * size)


def _bandwidth(cluster: str, size: float) -> float:
    """B/s of a message between neighbours."""
    fabric = fabric_of(load_cluster(cluster))
    return size / collective_seconds("send_recv", size, place_group((("x", 2),), ("x",), fabric), fabric).seconds
