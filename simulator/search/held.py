"""What ranks hold at least, from the tensors that a step itself is made of.

When a rank begins an action, it holds what stands through the whole step, what its forwards saved for backwards that have not
run, and the temporaries of the action:

    resident | saved by forwards so far, less those whose backwards have ended | mark | with ZeRO-3, a layer's whole weights and gradients

without what the allocator would give back, and what is received.

Where a rank may skip any of that the states alone are counted; where ranks differ, nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.hardware.conditions import plain_if_slower
from simulator.hardware.memory_residuals import PARTS, load_memory_residuals
from simulator.job import Job
from simulator.lowering.grouping import bytes_of
from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.memory.remember import kept_output, resident_tensors, saved_by
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import classes_of
from simulator.lowering.steps.parameters import group_held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.lowering.steps.unit_parts import gradient_made, made_in_turn
from simulator.program.program import Tensor
from simulator.remembered import Remembered
from simulator.search.bounds import ROUNDING, contents_of, one_after_another
from simulator.workload.workload import Workload

__all__ = [
    "ACTIVATION_FIELDS",
    "GATHERS",
    "MICROBATCH",
    "ZERO",
    "Lasting",
    "grows_with_tokens",
    "held_bytes",
    "lasting",
    "least_bytes",
]


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
    if plain_if_slower(job.cluster) is None:
        return np.zeros(state.ranks)
    stands = (lasts or lasting(job.workload, state.resolved, lambda: state)).bytes
    parted = state.resolved.framework.split_keeps_graph and state.resolved.schedule.splits_backward
    if stands.max() <= enough and one_after_another(state) and not state.structure.sizes and not parted:
        return np.asarray(stands + _in_flight(state))
    return stands


class Lasting(NamedTuple):
    """What stands through the whole step.

    Args:
        bytes: [ranks].
        parts: of ranks that differ, the bytes of each of `PARTS`.
        shared: whether all plans have it that differ in no other field than `ACTIVATION_FIELDS`.
    """

    bytes: np.ndarray
    parts: frozenset[tuple[float, ...]]
    shared: bool

    def spread(self, peak: float) -> float:
        """Return the log spread at least of the fullest rank's peak, if it is as large as this [B].

        What else stands at a peak may be of any part that grows in a step; where errors even out best, each has as much as its spread
        allows: bytes x sigma^2 are the same for all that are above what stands through the step.
        """
        return min(_evened_out(parts, peak) for parts in self.parts) / peak


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
    mixed = (
        framework.receives_ahead
        or framework.returns_outputs
        or framework.states_break_places
        or framework.drops_gradients
    )
    return resolved.schedule.flush and not mixed


def grows_with_tokens(state: State) -> bool:
    """Whether a rank holds as much at least (`least_bytes`) when microbatches are larger, and fewer.

    What stands through the whole step is the same then.  A rank of a pipeline that begins each backward as soon as it can holds
    min(k, m) microbatches of b sequences, k by its place; of m / n of n b sequences n min(k, m / n) b, which is no less.
    """
    resolved = state.resolved
    waits = resolved.schedule.splits_backward or resolved.activation_offload or resolved.cuda_graphs
    return _shared(resolved) and one_after_another(state) and not waits


MICROBATCH = "plan.microbatch_size"
ZERO = "plan.zero_stage"
GATHERS = 3
"""The stage from which on weights are gathered, layer by layer.  Up to there a rank holds no more where more is sharded, and runs the same
kernels."""
ACTIVATION_FIELDS = frozenset(
    {
        MICROBATCH,
        "plan.recompute",
        "plan.recompute_modules",
        "plan.recompute_policy",
        "plan.recompute_method",
        "plan.recompute_layers",
        "plan.recompute_checkpoints",
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
    sizes = {number: bytes_of(tensors) for number, tensors in different.items()}
    parts = frozenset(_parts(tensors) for tensors in different.values())
    return Lasting(np.array([sizes[id(tensors)] for tensors in resident]), parts, _shared(state.resolved))


def _parts(tensors: list[Tensor]) -> tuple[float, ...]:
    return tuple([sum(t.bytes for t in tensors if t.category in names) for names in PARTS.values()])


def _evened_out(stands: tuple[float, ...], peak: float) -> float:
    """Log spread of a peak times its bytes, at least.

    Args:
        stands: bytes of each of `PARTS` that are there; a context does not grow.
    """
    residuals = load_memory_residuals().part
    sigmas = [residuals[name].sigma for name in PARTS]
    held = list(stands)
    growing = [number for number, name in enumerate(PARTS) if name != "context"]
    while growing:
        room = peak - sum(held) + sum(held[number] for number in growing)
        level = room / sum(sigmas[number] ** -2 for number in growing)
        above = [number for number in growing if held[number] * sigmas[number] ** 2 > level]
        if not above:
            for number in growing:
                held[number] = level / sigmas[number] ** 2
            break
        growing = [number for number in growing if number not in above]
    return math.hypot(*(size * sigma for size, sigma in zip(held, sigmas, strict=True)))


def _in_flight(state: State) -> np.ndarray:
    """[ranks] bytes of saved tensors and temporaries at the fullest action of every rank.

    Of a head alone temporaries may be less than it says (`largest_mark`).  Under ZeRO-3 a forward keeps, and a backward lets go of what
    it has used, unit by unit: those of the layer next to the head count, less what the head behind it keeps.
    """
    chunks, class_of = classes_of(state.chunks)
    structure, resolved, costs = state.structure, state.resolved, state.costs
    moments = _MOMENTS.get((structure, class_of), lambda: _moments(structure, class_of))
    contents = contents_of(chunks, tuple(costs))
    kept, forward, backward, unit = _sizes(tuple(costs.values()))
    saved, before, behind, gone = contents.counts @ kept, contents.held, contents.behind, 0.0
    if resolved.zero_stage == 3:
        weights, gradients = np.array([_unsharded(state, kind) for kind in costs]).T
        backward = np.where([made_in_turn(resolved, (kind,)) for kind in costs], unit, backward + gradients)
        forward, backward = forward + weights, backward + weights
        before = behind = contents.first
        gone = (contents.held - contents.behind) @ kept
    if resolved.activation_offload:
        saved = np.array([bytes_of(saved_by(state, costs, chunk)) for chunk in chunks])
    elif resolved.framework.keeps_outputs:
        saved += [kept_output(state, costs, chunk) for chunk in chunks]
    marks = np.array([(before * forward).max(axis=1), (behind * backward).max(axis=1)]) - gone
    level = moments.held @ saved + marks[moments.way, moments.chunk]
    return np.asarray(np.maximum.reduceat(level, moments.first))


@functools.lru_cache(maxsize=2048)
def _sizes(layers: tuple[LayerCost, ...]) -> np.ndarray:
    """[4, layers] bytes of what each saves, and of its temporaries forward, backward and as a unit's."""
    each = [[bytes_of(of(cost)) for of in _OF] for cost in layers]
    return np.array(each, np.float64).T


_OF = tuple(operator.attrgetter(name) for name in ("saved", "forward_mark", "backward_mark", "unit_mark"))


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
    starts, frees = order.kind == 0, order.completes
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
    held = group_held(state, (kind,))
    whole, trained = (
        sum(count for _, count, _ in some) for some in (held.gathered(resolved), held.trained.parts(resolved))
    )
    gathered = 0.0 if resolved.framework.gathers_by_tensor else resolved.precision.element
    each_time = resolved.fsdp_reduce == "microbatch" and not resolved.schedule.splits_backward
    return float(whole * gathered), float(trained * gradient_made(resolved) if each_time else 0.0)
