"""What a step takes and holds at least, from the kernels and tensors that the step itself is made of.

**Seconds.** A rank runs its segments one after another on one stream, and a segment takes no less than its kernels.  So a step takes no
less than the forwards and backwards of all microbatches on one rank.  Before its first forward a microbatch went through the chunks in
front of its lowest one, and behind its last backward, unless weights have a half of their own, one goes back through them:

    fill: forwards in front | m (forwards + backwards) of the rank's chunks | drain: backwards in front

**Bytes.** When a rank begins an action, it holds what stands through the whole step, what its forwards saved for backwards that have not
run, and the temporaries of the action:

    resident | saved by forwards so far, less those whose backwards have ended | mark

without what the allocator would give back, and what is gathered or received.

Where a rank may skip or hide any of that - chunks in several lanes, slices, steps that run into each other, fused pairs, ranks that
differ - less is counted: of seconds none, of bytes the states alone.
"""

from __future__ import annotations

import functools

import numpy as np

from simulator.costs.tables import Machine, machine_of, price_table
from simulator.job import Job
from simulator.lowering import ResolvedPlan, begin, chunks_of
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.lowering.memory.remember import largest_mark, resident_tensors, saved_by
from simulator.lowering.steps.state import State
from simulator.program.program import Tensor
from simulator.schedules.base import Schedule
from simulator.schedules.shape import Shape

__all__ = ["least_bytes", "least_seconds"]


def least_seconds(job: Job, resolved: ResolvedPlan) -> float:
    """Return seconds that the step of a job cannot be quicker than; 0 where nothing is known."""
    if not _one_after_another(job, resolved):
        return 0.0
    schedule = resolved.schedule
    placement = schedule.placement(resolved.shape)
    machine = machine_of(job.cluster, resolved.framework.backend)
    costs = layer_costs(job.workload, resolved)
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


def _one_after_another(job: Job, resolved: ResolvedPlan) -> bool:
    """Whether every rank runs whole microbatches of one copy of the model, one action after another."""
    schedule = resolved.schedule
    if job.cluster.parts or schedule.replicas > 1 or schedule.slices or not schedule.flush:
        return False
    return not (resolved.framework.fuses_pairs and _has_pairs(schedule, resolved.shape))


@functools.lru_cache(maxsize=1024)
def _has_pairs(schedule: Schedule, shape: Shape) -> bool:
    """Whether a schedule runs forwards and backwards as pairs."""
    return bool((schedule.order(shape, schedule.placement(shape)).pair >= 0).any())


_ROUNDING = 1e-9
"""Sums are made in another order here than in a step."""


def _seconds(cost: LayerCost, way: str, machine: Machine, axes: tuple[tuple[str, int], ...]) -> float:
    """Kernels of a layer's forward or backward [s]."""
    return price_table(cost.forward if way == "forward" else cost.backward, machine, axes).seconds


def least_bytes(job: Job, resolved: ResolvedPlan) -> float:
    """Return bytes that the fullest rank of a job holds at least; 0 where ranks differ."""
    if job.cluster.parts:
        return 0.0
    state = begin(job.workload, resolved)
    stands = np.array([_size(tensors) for tensors in resident_tensors(state)])
    if _one_after_another(job, resolved) and not state.structure.sizes:
        stands += _in_flight(state)
    return float(stands.max()) * (1.0 - _ROUNDING)


def _size(tensors: list[Tensor] | tuple[Tensor, ...]) -> float:
    return sum(tensor.bytes for tensor in tensors if tensor.category != "fragmentation")


def _in_flight(state: State) -> np.ndarray:
    """[ranks] bytes of saved tensors and temporaries at the fullest action of every rank."""
    order, chunks = state.order, list(dict.fromkeys(state.chunks))
    saved = np.array([_size(saved_by(state, state.costs, chunk)) for chunk in chunks])
    marks = np.array([[_mark(state, chunk.kinds, way) for chunk in chunks] for way in ("forward", "backward")])
    chunk = np.array([chunks.index(one) for one in state.chunks])[order.chunk]
    starts, frees = order.kind == 0, (order.kind == 1) | (order.kind == 3)
    freed = np.where(frees, saved[chunk], 0.0)
    after = np.cumsum(np.where(starts, saved[chunk], 0.0) - freed)
    first = order.rank_offsets[:-1]
    before = np.where(first > 0, after[first - 1], 0.0)
    level = after + freed - np.repeat(before, np.diff(order.rank_offsets)) + marks[(~starts).astype(int), chunk]
    return np.asarray(np.maximum.reduceat(level, first))


def _mark(state: State, kinds: list[str], way: str) -> float:
    """Bytes of the largest temporaries of a chunk's layers; a head alone may hold less than it says (`largest_mark`)."""
    layers = tuple(kind for kind in kinds if kind != "head") if way == "backward" else tuple(kinds)
    return _size(largest_mark(state, state.costs, layers, way))
