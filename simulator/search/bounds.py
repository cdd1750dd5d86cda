"""What a step takes and holds at least, from the kernels, messages and tensors that the step itself is made of.

**Seconds.** A rank runs its segments one after another on one stream, and a segment takes no less than its kernels.  So a step takes no
less than the forwards and backwards of all microbatches on one rank.  Before its first forward a microbatch went through the chunks in
front of its lowest one and the messages between them, and behind its last backward, unless weights have a half of their own, one goes
back through them, or, where nothing runs beside the backward, the rank's gradients are added:

    fill: forwards in front | m (forwards + backwards) of the rank's chunks | drain: backwards in front, or reductions | gather of weights

A rank's reductions share a stream, and so do all messages from one rank to another: a step takes no less than either.

**Bytes.** When a rank begins an action, it holds what stands through the whole step, what its forwards saved for backwards that have not
run, and the temporaries of the action:

    resident | saved by forwards so far, less those whose backwards have ended | mark | with ZeRO-3, a layer's whole weights and gradients

without what the allocator would give back, and what is received.

Where a rank may skip or hide any of that less is counted: with chunks in several lanes or fused pairs, of seconds the busiest rank's
kernels alone, without exchanges of experts; with slices, steps that run into each other or ranks that differ none; of bytes the states.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.costs.items import Desk, desk_of, price_item
from simulator.costs.tables import price_table
from simulator.hardware.memory_residuals import load_memory_residuals
from simulator.job import Job
from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.memory.remember import kept_output, resident_tensors, saved_by
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import Chunk, classes_of
from simulator.lowering.steps.connect import message_links
from simulator.lowering.steps.hops import links_of
from simulator.lowering.steps.parameters import contents, first_alike, group_held, layer_counts, rank_held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.lowering.steps.unit_parts import gather_links, gradient_made
from simulator.lowering.steps.update import weight_gathers
from simulator.program.prices import ACCOUNTS
from simulator.program.program import Tensor
from simulator.remembered import Remembered
from simulator.workload.layer_kind import is_layer
from simulator.workload.workload import Workload

__all__ = [
    "ACTIVATION_FIELDS",
    "MICROBATCH",
    "ROUNDING",
    "Lasting",
    "grows_with_tokens",
    "held_bytes",
    "lasting",
    "least_bytes",
    "least_seconds",
]


def least_seconds(job: Job, state: State, enough: float = math.inf) -> float:
    """Return seconds that the step of a job cannot be quicker than; 0 where nothing is known.

    Args:
        state: of the job, as `lowering.begin` returns it.
        enough: seconds of the kernels alone from which on nothing else is counted.
    """
    if job.cluster.parts:
        return 0.0
    resolved, ranks = state.resolved, state.ranks
    desk = desk_of(job.cluster, resolved.axes, resolved.framework)
    if not _one_after_another(state):
        return _least_busy(state, desk) * (1.0 - ROUNDING)
    forward, backward = _of_chunks(state, desk, _kernels)
    way = _ROUTES.get((state.structure,), lambda: _route(state))
    busy = resolved.microbatches * np.bincount(way.rank_of, forward + backward, ranks)
    fill = _before(forward)[way.first]
    drain = np.zeros(ranks) if resolved.schedule.splits_backward else _before(backward)[way.first]
    kernels = float((fill + busy + drain).max()) * (1.0 - ROUNDING)
    if kernels > enough:
        return kernels
    messages = [price_item(link, desk) for link in message_links(state)]
    occupancy, latency = (np.array([getattr(one, name) for one in messages]) for name in ("occupancy", "latency"))
    sent = np.bincount(state.pattern.link, minlength=len(messages)) * occupancy
    hops = np.append(occupancy + latency, 0.0)  # on one rank nothing is sent
    fill += _before(hops[way.there])[way.first]
    if not resolved.schedule.splits_backward:
        drain += _before(hops[way.back])[way.first]
    alike = [first_alike(state, rank) for rank in range(ranks)]
    exchanged = {rank: _exchanged(state, rank, desk) for rank in dict.fromkeys(alike)}
    reduced, gathered = np.array([exchanged[rank] for rank in alike]).T
    behind = reduced if not resolved.overlap_gradients and resolved.zero_stage < 2 else 0.0
    whole = np.maximum(fill + busy + np.maximum(drain, behind + gathered), reduced + gathered)
    return float(max(sent.max(initial=0.0), whole.max())) * (1.0 - ROUNDING)


def _of_chunks(state: State, desk: Desk, seconds: Callable[[LayerCost, str, Desk], float]) -> np.ndarray:
    """[2, chunks] seconds of every chunk's forward and backward."""
    each = _of_layers(tuple(state.costs.values()), desk, seconds)
    return np.asarray(each @ _contents_of(state.chunks, tuple(state.costs)).counts.T)


@functools.lru_cache(maxsize=2048)
def _of_layers(
    layers: tuple[LayerCost, ...], desk: Desk, seconds: Callable[[LayerCost, str, Desk], float]
) -> np.ndarray:
    """[2, layers] seconds of every layer's forward and backward."""
    return np.array([[seconds(cost, way, desk) for cost in layers] for way in ("forward", "backward")])


class _Contents(NamedTuple):
    """[chunks, kinds of layers] how many of each kind chunks hold; whether they hold any, and but for the head; and whether the first of
    their layers is of it."""

    counts: np.ndarray
    held: np.ndarray
    behind: np.ndarray
    first: np.ndarray


@functools.lru_cache(maxsize=512)
def _contents_of(chunks: tuple[Chunk, ...], kinds: tuple[str, ...]) -> _Contents:
    place = {kind: number for number, kind in enumerate(kinds)}
    counts, first = np.zeros((len(chunks), len(kinds))), np.zeros((len(chunks), len(kinds)))
    for number, chunk in enumerate(chunks):
        for kind, count in layer_counts(chunk):
            counts[number, place[kind]] = count
        for kind in [kind for kind in chunk.kinds if kind != "head"][-1:]:
            first[number, place[kind]] = 1.0
    held = (counts > 0).astype(float)
    behind = held * np.array([kind != "head" for kind in kinds])
    return _Contents(counts, held, behind, first)


def _least_busy(state: State, desk: Desk) -> float:
    """Seconds of the busiest rank's kernels where chunks lie in several lanes, or exchanges of experts hide in fused pairs; 0 where
    actions are no whole microbatches, or steps run into each other."""
    schedule = state.resolved.schedule
    if schedule.slices or not schedule.flush or state.steps > 1 or state.structure.sizes:
        return 0.0
    times = _TIMES.get((state.structure,), lambda: _times(state))
    return float((times * _of_chunks(state, desk, _computing)).sum(axis=(1, 2)).max())


def _times(state: State) -> np.ndarray:
    """[ranks, 2, chunks] how often a rank runs each chunk forward, and backward to its end."""
    order, rank = state.order, state.pattern.rank
    out = np.zeros((state.ranks, 2, len(state.chunks)))
    for way, mine in enumerate((order.kind == 0, (order.kind == 1) | (order.kind == 3))):
        np.add.at(out, (rank[mine], way, order.chunk[mine]), 1.0)
    return out


_TIMES: Remembered[np.ndarray] = Remembered(2**22, lambda times: 1024 + times.nbytes)


class _Route(NamedTuple):
    """The way of a microbatch: the rank of every chunk, the first chunk of every rank, and the link (-1 = none) from every chunk but
    the last to the next, and back."""

    rank_of: np.ndarray
    first: np.ndarray
    there: np.ndarray
    back: np.ndarray


def _route(state: State) -> _Route:
    links = {ranks[:2]: number for number, ranks in enumerate(state.pattern.links)}
    rank_of = state.placement.rank_of[0]
    ways = list(itertools.pairwise(rank_of.tolist()))
    there, back = (np.array([links.get(way[::turn], -1) for way in ways], np.int64) for turn in (1, -1))
    return _Route(rank_of, np.unique(rank_of, return_index=True)[1], there, back)


_ROUTES: Remembered[_Route] = Remembered(2**22, lambda route: 4096 + sum(array.nbytes for array in route))


def _before(seconds: np.ndarray) -> np.ndarray:
    """Seconds of all before each, and of all."""
    return np.append(0.0, np.cumsum(seconds))


def _one_after_another(state: State) -> bool:
    """Whether every rank runs whole microbatches of one copy of the model, one action after another."""
    schedule, framework = state.resolved.schedule, state.resolved.framework
    if schedule.replicas > 1 or schedule.slices or not schedule.flush or state.steps > 1:
        return False
    return not (framework.fuses_pairs and (state.order.pair >= 0).any())


ROUNDING = 1e-9
"""Sums are made in another order here than in a step."""


def _kernels(cost: LayerCost, way: str, desk: Desk) -> float:
    """Kernels of a layer's forward or backward [s]."""
    return price_table(cost.forward if way == "forward" else cost.backward, desk.machine, desk.axes).seconds


def _computing(cost: LayerCost, way: str, desk: Desk) -> float:
    """As `_kernels`, without the exchanges of experts, which a pair may hide."""
    price = price_table(cost.forward if way == "forward" else cost.backward, desk.machine, desk.axes)
    return price.seconds - float(price.account[ACCOUNTS.index("ep")])


def _exchanged(state: State, rank: int, desk: Desk) -> tuple[float, float]:
    """Seconds in which a rank's replicas add its gradients, and in which weights that they updated in shards are gathered; one message
    takes no longer than its parts."""
    resolved = state.resolved
    if not resolved.reduces or resolved.quantized_gradients:
        return 0.0, 0.0

    def seconds(item: int) -> float:
        return price_item(state.items[item], desk).occupancy

    chains = links_of(state, "gradients", rank_held(state, rank))
    first = sum(resolved.reductions * seconds(chain[0]) for chain in chains)
    if resolved.zero_stage == 3:
        gathers = _gathered(state, rank, seconds)
        first = max(first, gathers) if resolved.framework.separate_communicators else first + gathers
    reduced = max((first, *map(seconds, _second_hops(chains))))
    if resolved.zero_stage not in (1, 2) or resolved.overlap_parameters or resolved.optimizer_offload:
        return reduced, 0.0
    return reduced, sum(map(seconds, weight_gathers(state, rank)))


def _gathered(state: State, rank: int, seconds: Callable[[int], float]) -> float:
    """Seconds in which ZeRO-3 gathers a rank's layers for every microbatch, forward and, where no unit can stay, backward."""
    resolved, habits = state.resolved, state.resolved.framework
    by_tensor = habits.gathers_by_tensor or habits.gather_bucket  # some may stay, or come with others
    if by_tensor or not resolved.reshard_after_forward or resolved.fsdp_gather != "microbatch":
        return 0.0
    kinds = [kind for chunk in contents(state, rank) for kind in chunk.kinds if is_layer(kind)]
    each = 0.0
    for what, count, group in group_held(state, kinds).parts(resolved):
        forward, backward = gather_links(state, f"weights{what}", count, group)
        each += seconds(forward) + (seconds(backward) if resolved.fsdp_unit == 1 else 0.0)
    return resolved.microbatches * each


def _second_hops(chains: list[tuple[int, ...]]) -> list[int]:
    """Hops between copies of shards, each on the stream of the copies."""
    return [item for chain in chains for item in chain[1:]]


def least_bytes(job: Job, state: State, enough: float = math.inf, stands: Lasting | None = None) -> float:
    """Return bytes that the fullest rank of a job holds at least; 0 where ranks differ.

    Args:
        state: of the job, as `lowering.begin` returns it.
        enough: bytes of the states alone from which on nothing else is counted.
        stands: what stands through the whole step, where that is known.
    """
    return float(held_bytes(job, state, enough, stands).max()) * (1.0 - ROUNDING)


def held_bytes(job: Job, state: State, enough: float = math.inf, lasts: Lasting | None = None) -> np.ndarray:
    """Return, as `least_bytes`, [ranks] bytes of each pipeline rank."""
    if job.cluster.parts:
        return np.zeros(state.ranks)
    stands = (lasts or lasting(job.workload, state.resolved, lambda: state)).bytes
    if stands.max() <= enough and _one_after_another(state) and not state.structure.sizes:
        return np.asarray(stands + _in_flight(state))
    return stands


class Lasting(NamedTuple):
    """What stands through the whole step.

    Args:
        bytes: [ranks].
        spread: log spread of the fullest rank's peak, times the peak's bytes, at least.
        shared: whether all plans have it that differ in no other field than `ACTIVATION_FIELDS`.
    """

    bytes: np.ndarray
    spread: float
    shared: bool


def lasting(workload: Workload, resolved: ResolvedPlan, begun: Callable[[], State]) -> Lasting:
    """Return what stands through the whole step; plans that differ in what they keep from forward to backward alone share it.

    Args:
        begun: makes the state of the plan, as `lowering.begin` does.
    """
    key = workload, _states_choices(resolved), () if _shared(resolved) else _activation_choices(resolved)
    return _LASTING.get(key, lambda: _lasting(begun()))


def _shared(resolved: ResolvedPlan) -> bool:
    """Whether what stands through the whole step is the same whatever microbatches keep from forward to backward."""
    framework = resolved.framework
    mixed = framework.receives_ahead or framework.states_break_places or framework.drops_gradients
    return resolved.schedule.flush and not mixed


def grows_with_tokens(state: State) -> bool:
    """Whether a rank holds as much at least (`least_bytes`) when microbatches are larger, and fewer.

    What stands through the whole step is the same then.  A rank of a pipeline that begins each backward as soon as it can holds
    min(k, m) microbatches of b sequences, k by its place; of m / n of n b sequences n min(k, m / n) b, which is no less.
    """
    resolved = state.resolved
    waits = resolved.schedule.splits_backward or resolved.activation_offload or resolved.cuda_graphs
    return _shared(resolved) and _one_after_another(state) and not waits


MICROBATCH = "plan.microbatch_size"
ACTIVATION_FIELDS = frozenset(
    {
        MICROBATCH,
        "plan.recompute",
        "plan.recompute_modules",
        "plan.recompute_policy",
        "plan.recompute_method",
        "plan.recompute_layers",
    }
)
"""Fields that say how much microbatches keep, and no more."""
_ACTIVATIONS = ("microbatch_size", "microbatches", "recomputes", "cuda_graphs")
"""Choices of a resolved plan that what stands through the whole step does not depend on, unless a framework makes it."""
_activation_choices = operator.attrgetter(*_ACTIVATIONS)
_states_choices = operator.attrgetter(*(f.name for f in dataclasses.fields(ResolvedPlan) if f.name not in _ACTIVATIONS))
_LASTING: Remembered[Lasting] = Remembered(2**24, lambda found: 4096 + found.bytes.nbytes)


def _lasting(state: State) -> Lasting:
    resident = resident_tensors(state)
    different = {id(tensors): [t for t in tensors if t.category != "fragmentation"] for tensors in resident}
    sizes = {number: _size(tensors) for number, tensors in different.items()}
    spread = min(_spread(tensors) for tensors in different.values())
    return Lasting(np.array([sizes[id(tensors)] for tensors in resident]), spread, _shared(state.resolved))


def _spread(tensors: list[Tensor]) -> float:
    by_category: dict[str, float] = {}
    for tensor in tensors:
        by_category[tensor.category] = by_category.get(tensor.category, 0.0) + tensor.bytes
    return load_memory_residuals().sigma(by_category) * sum(by_category.values())


def _size(tensors: list[Tensor] | tuple[Tensor, ...]) -> float:
    return sum(tensor.bytes for tensor in tensors if tensor.category != "fragmentation")


def _in_flight(state: State) -> np.ndarray:
    """[ranks] bytes of saved tensors and temporaries at the fullest action of every rank.

    Of a head alone temporaries may be less than it says (`largest_mark`).  Under ZeRO-3 a backward lets go of what it has used unit by
    unit: those of its first layer count, less what the head behind it had kept.
    """
    chunks, class_of = classes_of(state.chunks)
    structure, resolved, costs = state.structure, state.resolved, state.costs
    moments = _MOMENTS.get((structure, class_of), lambda: _moments(structure, class_of))
    contents = _contents_of(chunks, tuple(costs))
    kept, forward, backward = _sizes(tuple(costs.values()))
    saved, behind, gone = contents.counts @ kept, contents.behind, 0.0
    if resolved.zero_stage == 3:
        weights, gradients = np.array([_unsharded(state, kind) for kind in costs]).T
        forward, backward = forward + weights, backward + weights + gradients
        behind, gone = contents.first, (contents.held - contents.behind) @ kept
    if resolved.activation_offload:
        saved = np.array([_size(saved_by(state, costs, chunk)) for chunk in chunks])
    elif resolved.framework.keeps_outputs:
        saved += [kept_output(state, costs, chunk) for chunk in chunks]
    marks = np.array([(contents.held * forward).max(axis=1), (behind * backward).max(axis=1) - gone])
    level = moments.held @ saved + marks[moments.way, moments.chunk]
    return np.asarray(np.maximum.reduceat(level, moments.first))


@functools.lru_cache(maxsize=2048)
def _sizes(layers: tuple[LayerCost, ...]) -> np.ndarray:
    """[3, layers] bytes of what each saves, and of its temporaries forward and backward."""
    each = [(_size(cost.saved), _size(cost.forward_mark), _size(cost.backward_mark)) for cost in layers]
    return np.array(each, np.float64).T


class _Moments(NamedTuple):
    """Beginnings of actions at which a rank may be fullest, rank by rank.

    Args:
        held: [moments, kinds of chunks] microbatches whose tensors stand, that of the action included.
        way: 0 forward, 1 backward; `chunk`: the kind that the action runs.
        first: [ranks] where the moments of each rank begin.
    """

    held: np.ndarray
    way: np.ndarray
    chunk: np.ndarray
    first: np.ndarray


def _moments(structure: Structure, class_of: tuple[int, ...]) -> _Moments:
    """Leave out what was there before, and moments at which the same action begins with less of everything."""
    order, rank, kinds = structure.order, structure.pattern.rank, max(class_of) + 1
    chunk = np.array(class_of)[order.chunk]
    starts, frees = order.kind == 0, (order.kind == 1) | (order.kind == 3)
    changes = starts.astype(np.int64) - frees
    code = (rank * 2 + ~starts) * kinds + chunk
    held = np.empty((kinds, order.size), np.int64)
    for number in range(kinds):
        mine = chunk == number
        after = np.cumsum(changes * mine)
        held[number] = after + (frees & mine) - np.append(0, after)[order.rank_offsets[rank]]
        size = int(held[number].max()) + 1
        if int(code.max()) >= 2**62 // size:
            code = np.unique(code, return_inverse=True)[1]
        code = code * size + held[number]
    different = np.unique(code, return_index=True)[1]
    held, action = held.T[different], np.column_stack([rank, ~starts, chunk])[different]
    less = (held[1:] >= held[:-1]).all(axis=1) & (action[1:] == action[:-1]).all(axis=1)
    kept = np.flatnonzero(~np.append(less, False))
    rank, way, chunk = action[kept].T
    return _Moments(held[kept].astype(float), way, chunk, np.searchsorted(rank, np.arange(structure.ranks)))


_MOMENTS: Remembered[_Moments] = Remembered(2**24, lambda moments: 4096 + sum(array.nbytes for array in moments))


def _unsharded(state: State, kind: str) -> tuple[float, float]:
    """Bytes of a layer's whole weights while ZeRO-3 runs it, and of its whole gradients before they are reduced."""
    resolved = state.resolved
    whole = sum(count for _, count, _ in group_held(state, (kind,)).parts(resolved))
    gathered = 0.0 if resolved.framework.gathers_by_tensor else resolved.precision.element
    each_time = (
        resolved.fsdp_reduce == "microbatch" and not resolved.reduces_once and not resolved.schedule.splits_backward
    )
    return float(whole * gathered), float(whole * gradient_made(resolved) if each_time else 0.0)
