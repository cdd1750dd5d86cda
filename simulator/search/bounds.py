"""What a step takes at least: the kernels of its busiest rank, priced by the code that prices the step itself.

A rank runs its segments one after another on one stream, and a segment takes no less than its kernels.  So a step takes no less than the
forwards and backwards of all microbatches on one rank.  Before its first forward a microbatch went through the chunks in front of its
lowest one, and behind its last backward, unless weights have a half of their own, one goes back through them:

    fill: forwards in front | m (forwards + backwards) of the rank's chunks | drain: backwards in front

Where a rank may skip or hide any of that - chunks in several lanes, slices, steps that run into each other, fused pairs, ranks that
differ - the bound is 0, and the plan is simulated.
"""

from __future__ import annotations

import functools

from simulator.costs.tables import Machine, machine_of, price_table
from simulator.job import Job
from simulator.lowering import chunks_of, resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.schedules.base import Schedule
from simulator.schedules.shape import Shape

__all__ = ["least_seconds"]


def least_seconds(job: Job) -> float:
    """Return seconds that the step of a job cannot be quicker than; 0 where nothing is known.

    Raises:
        PlanError: the plan cannot be.
    """
    cluster = job.cluster
    resolved = resolve(job.workload, job.plan, cluster.world_size, f"cluster {cluster.name!r}")
    schedule = resolved.schedule
    if cluster.parts or schedule.replicas > 1 or schedule.slices or not schedule.flush:
        return 0.0
    if resolved.framework.fuses_pairs and _has_pairs(schedule, resolved.shape):
        return 0.0
    placement = schedule.placement(resolved.shape)
    machine, costs = machine_of(cluster), layer_costs(job.workload, resolved)
    chunks = chunks_of(job.workload.model, resolved.recomputes, resolved.layer_split, placement.chunks)
    forward, backward = (
        [sum(_seconds(costs[kind], way, machine, resolved.axes) for kind in chunk.kinds) for chunk in chunks]
        for way in ("forward", "backward")
    )
    rank_of = placement.rank_of[0].tolist()
    most = 0.0
    for rank in range(placement.ranks):
        mine = [chunk for chunk, place in enumerate(rank_of) if place == rank]
        busy = resolved.microbatches * sum(forward[chunk] + backward[chunk] for chunk in mine)
        fill, drain = sum(forward[: mine[0]]), sum(backward[: mine[0]])
        most = max(most, fill + busy + (0.0 if schedule.splits_backward else drain))
    return most * (1.0 - _ROUNDING)


@functools.lru_cache(maxsize=1024)
def _has_pairs(schedule: Schedule, shape: Shape) -> bool:
    """Whether a schedule runs forwards and backwards as pairs."""
    return bool((schedule.order(shape, schedule.placement(shape)).pair >= 0).any())


_ROUNDING = 1e-9
"""Sums are made in another order here than in a step."""


def _seconds(cost: LayerCost, way: str, machine: Machine, axes: tuple[tuple[str, int], ...]) -> float:
    """Kernels of a layer's forward or backward [s]."""
    return price_table(cost.forward if way == "forward" else cost.backward, machine, axes).seconds
