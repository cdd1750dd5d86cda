"""Layers dealt out by dynamic programming: the busiest pipeline rank has the least to do, and every rank has room for its layers.

With t(r, a, b) the seconds of rank r for layers a to b, and what stays there, least(r, b) is the time of the busiest of ranks 0 to r, which
hold the layers up to b:

    least(r, b) = min over a of max(least(r - 1, a), t(r, a, b)), over those a for which rank r has room for layers a to b

Of the splits that reach least(last, all) the one with the fewest layers in front is taken, where most activations stand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import PlanError
from simulator.job import Job
from simulator.lowering import begin, resolve_on
from simulator.lowering.steps.state import State
from simulator.search.held import held_bytes
from simulator.search.split import Seconds, timed_split, work_of

__all__ = ["fitted_split", "least_split"]

_FULL = 0.9
"""Part of a GPU that a rank may fill by what it holds at least: peaks are a few percent above, and not known to the percent."""


def fitted_split(job: Job) -> tuple[int, ...]:
    """Return layers per chunk such that the busiest rank's kernels take least, of the splits whose ranks have room.

    With several chunks per rank layers are dealt out by time (`timed_split`).

    Args:
        job: with a plan that leaves `layer_split` open.

    Raises:
        PlanError: the plan cannot be, has one chunk, is dealt out so anyway, or no split has room.
    """
    resolved = resolve_on(job.workload, job.plan, job.cluster)
    state = begin(job.workload, resolved)
    work = work_of(job, state)
    if not work.alone:
        return timed_split(job)
    found, _ = least_split(work.layers.sum(axis=0), work.fixed.sum(axis=0), _most_layers(job, state, work.balanced))
    if not found:
        raise PlanError("no layer split has room on every pipeline rank")
    if found == work.balanced:
        raise PlanError(
            "layers that are dealt out best are as the balanced split has them. Way out: leave layer_split out"
        )
    return found


def least_split(layers: Seconds, fixed: Seconds, most: NDArray[np.int64]) -> tuple[tuple[int, ...], float]:
    """Return the split whose busiest chunk takes least, and how long that is; () where none has room.

    Args:
        layers: [layers] seconds of each.
        fixed: [chunks] seconds of what stays there.
        most: [chunks] layers for which there is room.
    """
    before = np.concatenate([[0.0], np.cumsum(layers)])
    start, end = np.ogrid[: len(layers) + 1, : len(layers) + 1]
    takes = [
        np.where((end > start) & (end - start <= room), before[None, :] - before[:, None] + stays, np.inf)
        for room, stays in zip(most, fixed, strict=True)
    ]
    least = [np.where(np.arange(len(layers) + 1) == 0, 0.0, np.inf)]
    for take in takes:
        least.append(np.maximum(least[-1][:, None], take).min(axis=0))
    best, place, found = float(least[-1][-1]), len(layers), []
    if not np.isfinite(best):
        return (), best
    for take, ahead in zip(takes[::-1], least[-2::-1], strict=True):
        cut = int(np.argmax(np.maximum(ahead, take[:, place]) <= best))
        found.append(place - cut)
        place = cut
    return tuple(found[::-1]), best


def _most_layers(job: Job, state: State, balanced: tuple[int, ...]) -> NDArray[np.int64]:
    """Layers for which each rank has room: bytes of a rank are a straight line through those of two splits."""
    one, other = np.array(balanced), np.array(balanced)
    other[0::2] += 1
    other[1::2] -= 1
    other[-1] += one.sum() - other.sum()
    everything = np.full(len(one), one.sum())
    if other.min() < 1 or (one == other).any():
        return everything
    split = replace(job, plan=job.plan.model_copy(update={"layer_split": tuple(other.tolist())}))
    resolved = resolve_on(split.workload, split.plan, split.cluster)
    held = [held_bytes(job, state), held_bytes(split, begin(split.workload, resolved))]
    slope = (held[1] - held[0]) / (other - one)
    room = _FULL * job.cluster.gpu.usable_memory - held[0]
    more = np.floor(np.divide(room, slope, out=np.full(len(one), np.inf), where=slope > 0))
    return np.asarray(np.clip(one + np.minimum(more, one.sum()), 0, one.sum()), np.int64)
