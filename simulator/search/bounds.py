"""What a step takes and holds at least, from the kernels, messages and tensors that the step itself is made of.

**Seconds.** A rank runs its segments one after another on one stream, and a segment takes no less than its kernels.  So a step takes no
less than the forwards and backwards of all microbatches on one rank.  Before its first forward a microbatch went through the chunks in
front of its lowest one and the messages between them, and behind its last backward, unless weights have a half of their own, one goes
back through them, or, where nothing runs beside the backward, the rank's gradients are added:

    fill: forwards in front | m (forwards + backwards) of the rank's chunks | drain: backwards in front, or reductions | gather of weights

A rank's reductions share a stream, and so do all messages from one rank to another: a step takes no less than either.

**Bytes.** When a rank begins an action, it holds what stands through the whole step, what its forwards saved for backwards that have not
run, and the temporaries of the action:

    resident | saved by forwards so far, less those whose backwards have ended | mark

without what the allocator would give back, and what is gathered or received.

Where a rank may skip or hide any of that - chunks in several lanes, slices, steps that run into each other, fused pairs, ranks that
differ - less is counted: of seconds none, of bytes the states alone.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from simulator.costs.items import Desk, desk_of, price_item
from simulator.costs.tables import price_table
from simulator.job import Job
from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.memory.remember import largest_mark, resident_tensors, saved_by
from simulator.lowering.steps.connect import message_links
from simulator.lowering.steps.hops import links_of
from simulator.lowering.steps.parameters import contents, rank_held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.update import weight_gathers
from simulator.program.program import Tensor

__all__ = ["least_bytes", "least_seconds"]


def least_seconds(job: Job, state: State) -> float:
    """Return seconds that the step of a job cannot be quicker than; 0 where nothing is known.

    Args:
        state: of the job, as `lowering.begin` returns it.
    """
    if job.cluster.parts or not _one_after_another(state):
        return 0.0
    resolved, placement = state.resolved, state.placement
    desk = desk_of(job.cluster, resolved.axes, resolved.framework)
    kinds = {kind: [_kernels(cost, way, desk) for way in ("forward", "backward")] for kind, cost in state.costs.items()}
    each = {chunk: np.sum([kinds[kind] for kind in chunk.kinds], axis=0) for chunk in dict.fromkeys(state.chunks)}
    forward, backward = np.array([each[chunk] for chunk in state.chunks]).T.tolist()
    messages = [price_item(link, desk) for link in message_links(state)]
    hop = {ranks[:2]: one.occupancy + one.latency for ranks, one in zip(state.pattern.links, messages, strict=True)}
    sent = np.bincount(state.pattern.link, minlength=len(messages)) * [one.occupancy for one in messages]
    rank_of = placement.rank_of[0].tolist()
    ways = list(itertools.pairwise(rank_of))
    there, back = ([hop.get(way[::turn], 0.0) for way in ways] for turn in (1, -1))
    most = float(sent.max(initial=0.0))
    known: dict[object, tuple[float, float]] = {}
    for rank in range(placement.ranks):
        first = rank_of.index(rank)
        mine = [chunk for chunk, place in enumerate(rank_of) if place == rank]
        held = contents(state, rank)
        if held not in known:
            known[held] = _exchanged(state, rank, desk)
        reduced, gathered = known[held]
        busy = resolved.microbatches * sum(forward[chunk] + backward[chunk] for chunk in mine)
        fill = sum(forward[:first]) + sum(there[:first])
        drain = 0.0 if resolved.schedule.splits_backward else sum(backward[:first]) + sum(back[:first])
        behind = reduced if not resolved.overlap_gradients and resolved.zero_stage < 2 else 0.0
        most = max(most, fill + busy + max(drain, behind + gathered), reduced + gathered)
    return most * (1.0 - _ROUNDING)


def _one_after_another(state: State) -> bool:
    """Whether every rank runs whole microbatches of one copy of the model, one action after another."""
    schedule, framework = state.resolved.schedule, state.resolved.framework
    if schedule.replicas > 1 or schedule.slices or not schedule.flush or state.steps > 1:
        return False
    return not (framework.fuses_pairs and (state.order.pair >= 0).any())


_ROUNDING = 1e-9
"""Sums are made in another order here than in a step."""


def _kernels(cost: LayerCost, way: str, desk: Desk) -> float:
    """Kernels of a layer's forward or backward [s]."""
    return price_table(cost.forward if way == "forward" else cost.backward, desk.machine, desk.axes).seconds


def _exchanged(state: State, rank: int, desk: Desk) -> tuple[float, float]:
    """Seconds in which a rank's replicas add its gradients, and in which weights that they updated in shards are gathered; one message
    takes no longer than its parts."""
    resolved = state.resolved
    if not resolved.reduces or resolved.quantized_gradients:
        return 0.0, 0.0

    def seconds(item: int) -> float:
        return price_item(state.items[item], desk).occupancy

    chains = links_of(state, "gradients", rank_held(state, rank))
    reduced = max(
        (sum(resolved.reductions * seconds(chain[0]) for chain in chains), *map(seconds, _second_hops(chains)))
    )
    if resolved.zero_stage not in (1, 2) or resolved.overlap_parameters or resolved.optimizer_offload:
        return reduced, 0.0
    return reduced, sum(map(seconds, weight_gathers(state, rank)))


def _second_hops(chains: list[tuple[int, ...]]) -> list[int]:
    """Hops between copies of shards, each on the stream of the copies."""
    return [item for chain in chains for item in chain[1:]]


def least_bytes(job: Job, state: State, enough: float = math.inf) -> float:
    """Return bytes that the fullest rank of a job holds at least; 0 where ranks differ.

    Args:
        state: of the job, as `lowering.begin` returns it.
        enough: bytes of the states alone from which on nothing else is counted.
    """
    if job.cluster.parts:
        return 0.0
    stands = np.array([_size(tensors) for tensors in resident_tensors(state)])
    if stands.max() <= enough and _one_after_another(state) and not state.structure.sizes:
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
