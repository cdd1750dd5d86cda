"""A job on nodes of several kinds as a problem of replicas: what its layers take on the GPUs of each node, and what they hold there.

job --lowering, prices of every node's GPUs--> seconds, bytes of layers --> UnlikeReplicas
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from simulator.collectives import collective_seconds
from simulator.costs.tables import machine_of, price_table
from simulator.errors import refuse
from simulator.hardware.cluster import Cluster
from simulator.hardware.conditions import condition
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import place_group
from simulator.hardware.parts import which_parts
from simulator.job import Job
from simulator.lowering import begin, lower_resolved, resolve_on
from simulator.lowering.memory.remember import largest_mark
from simulator.lowering.steps.parameters import rank_held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.update_tables import optimizer_table, update_facts
from simulator.planners.problems.unlike_replicas import UnlikeReplicas
from simulator.program.program import CATEGORIES, bytes_by_category
from simulator.search.split import work_of

__all__ = ["make_unlike_replicas"]

_STATES = tuple(CATEGORIES.index(name) for name in ("weights", "gradients", "optimizer_states"))


def make_unlike_replicas(job: Job) -> UnlikeReplicas:
    """Return the problem of dealing a job's GPUs out to its replicas.

    Args:
        job: with schedule "hetpipe"; its pipeline_parallel are the GPUs of a replica, its microbatches of a step those of a wave.

    Raises:
        PlanError: the job's plan cannot be, has another schedule, splits layers over ranks, or its parts are not of nodes.
        SpecError: replicas do not share all GPUs evenly.
    """
    plan, cluster = job.plan.model_copy(update={"layer_split": None, "replica_layer_splits": None}), job.cluster
    resolved = resolve_on(job.workload, plan, cluster)
    if not resolved.schedule.updates_each_microbatch or resolved.tensor_parallel > 1 or resolved.context_parallel > 1:
        refuse(
            "replicas are pipelines of one GPU a stage, which change their weights after every minibatch",
            f"schedule = {resolved.schedule.name!r}, tensor_parallel = {resolved.tensor_parallel}, context_parallel = "
            f"{resolved.context_parallel}",
            "schedule = 'hetpipe', gradient_exchange = 'wave_synchronous' and pipeline_parallel alone",
        )
    state, nodes = begin(job.workload, resolved), _nodes(cluster)
    works = {kind: work_of(replace(job, plan=plan, cluster=kind), state) for kind in dict.fromkeys(nodes)}
    program, last = lower_resolved(job.workload, resolved), len(state.chunks) - 1
    resident = bytes_by_category(program.resident)
    kinds = [kind for chunk in state.chunks for kind in chunk.kinds]
    groups = [tuple(kinds[:2]), *((kind,) for kind in kinds[2:-2]), tuple(kinds[-2:])]
    costs = [[state.costs[kind] for kind in group] for group in groups]
    once = float(resident[last, list(_STATES)].sum()) / rank_held(state, last).all  # the last rank has one version
    parameters = np.array([math.fsum(cost.parameters for cost in group) for group in costs])
    seconds = np.array([works[kind].layers.sum(axis=0) for kind in nodes])
    for end in (0, -1):  # of an embedding or a head
        seconds[:, end] += np.array([works[kind].fixed[:, end].sum() for kind in nodes])
    seconds += np.outer([_update_seconds(state, kind, parameters.sum()) for kind in nodes], parameters)
    received = np.array([state.costs[group[0]].input_bytes for group in groups])
    apart = {"inside": 1} if cluster.gpus_per_node > 1 else {}
    apart |= {"between": cluster.gpus_per_node} if cluster.nodes > 1 else {}
    wires = {where: _bandwidth(cluster, ranks, float(received.max())) for where, ranks in apart.items()}
    return UnlikeReplicas(
        kinds=tuple(kind.gpu.name for kind in nodes),
        gpus=cluster.gpus_per_node,
        stages=resolved.pipeline_parallel,
        wave=resolved.microbatches,
        versions=tuple(resolved.schedule.weight_versions(resolved.shape).tolist()),
        seconds=seconds,
        received=received,
        weights=parameters * float(resolved.precision.element),
        states=parameters * once,
        kept=np.array([math.fsum(tensor.bytes for cost in group for tensor in cost.saved) for group in costs]),
        work=np.array(
            [
                math.fsum(t.bytes for t in largest_mark(state, state.costs, group, "backward", 0.0, 0.0))
                for group in groups
            ]
        ),
        beside=float(np.delete(resident, _STATES, axis=1).sum(axis=1).max()),
        memory=np.array([kind.gpu.usable_memory for kind in nodes]),
        inside=wires.get("inside", 0.0),
        between=wires.get("between", 0.0),
    )


def _nodes(cluster: Cluster) -> list[Cluster]:
    """The cluster as each node sees it."""
    if any(part.pipeline_ranks or part.replicas for part in cluster.parts):
        refuse(
            "GPUs are dealt out to replicas and pipeline ranks, so a part of the cluster names nodes or ranks",
            "; ".join(part.text for part in cluster.parts),
            "nodes of each part",
        )
    nowhere = np.zeros(cluster.world_size, np.int64)
    found = which_parts(cluster.parts, cluster.gpus_per_node, {"pipeline_ranks": nowhere, "replicas": nowhere})
    rows = found.reshape(-1, cluster.gpus_per_node)
    if (rows != rows[:, :1]).any():
        refuse(
            "the GPUs of a node are alike",
            "; ".join(part.text for part in cluster.parts),
            "parts that name whole nodes",
        )
    return [condition(cluster, int(bits)) for bits in rows[:, 0]]


def _update_seconds(state: State, cluster: Cluster, weights: float) -> float:
    """Seconds a weight of the update that follows every minibatch, one kernel's launch among many left out."""
    table = optimizer_table(update_facts(state), weights, weights, weights, (), 1.0)
    return (
        price_table(table, machine_of(cluster, state.resolved.framework.backend), state.resolved.axes).seconds / weights
    )


def _bandwidth(cluster: Cluster, apart: int, size: float) -> float:
    """B/s of a message between GPUs whose ranks are so far apart, while their neighbours send as much."""
    fabric = fabric_of(cluster)
    place = place_group((("inner", apart), ("x", 2)), ("x",), fabric)
    return size / collective_seconds("send_recv", size, place, fabric).seconds
