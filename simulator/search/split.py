"""Layers dealt out by time: embedding and head count as what they take, so that no pipeline rank has more to do than it must.

With one chunk per rank the split is the best there is (the least possible time of the busiest rank, found by halving); with several, layers
move from the busiest rank to others as long as that helps.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.tables import machine_of, price_table
from simulator.errors import PlanError
from simulator.job import Job
from simulator.lowering import begin, resolve_on
from simulator.lowering.steps.state import State
from simulator.workload.layer_kind import is_layer

__all__ = ["BALANCED", "FITTED", "SPLIT", "TIMED", "Seconds", "Work", "check_dealt", "timed_split", "work_of"]

SPLIT = "plan.layer_split"
BALANCED, TIMED, FITTED = "balanced", "timed", "fitted"
"""Words that a space may have for values of `plan.layer_split`: left out, by time, and by dynamic programming (`search/fitted.py`)."""
_HALVINGS = 60
Seconds = NDArray[np.float64]
Counts = tuple[int, ...]


def timed_split(job: Job) -> Counts:
    """Return layers per chunk such that the busiest rank's kernels take least.

    Args:
        job: with a plan that leaves `layer_split` open.

    Raises:
        PlanError: the plan cannot be, has one chunk, or is dealt out so anyway.
    """
    cluster = job.cluster
    resolved = resolve_on(job.workload, job.plan, cluster)
    work = work_of(job, begin(job.workload, resolved))
    seconds, fixed = (tuple(some.sum(axis=0).tolist()) for some in (work.layers, work.fixed))
    found = _dealt(seconds, fixed, None if work.alone else tuple(work.rank_of.tolist()), work.balanced)
    if found == work.balanced:
        raise PlanError("layers dealt out by time are as the balanced split has them. Way out: leave layer_split out")
    return found


class Work(NamedTuple):
    """Kernels of a model's layers, and who runs its chunks.

    Args:
        layers: [2, layers] seconds of each layer's forward and backward, in the model's order.
        fixed: [2, chunks] of what stays where it is: embedding, head.
        rank_of: [chunks].
        balanced: layers per chunk of the balanced split.
    """

    layers: Seconds
    fixed: Seconds
    rank_of: NDArray[np.int64]
    balanced: tuple[int, ...]

    @property
    def alone(self) -> bool:
        """Whether every rank has one chunk."""
        return len(set(self.rank_of.tolist())) == len(self.rank_of)


def work_of(job: Job, state: State) -> Work:
    """Return what there is to deal out.

    Args:
        state: of the job, as `lowering.begin` returns it, with a plan that leaves `layer_split` open.

    Raises:
        PlanError: there is one chunk, or the model has more than one stack of layers.
    """
    machine = machine_of(job.cluster, state.resolved.framework.backend)
    check_dealt(len(state.chunks))
    each = {
        kind: [price_table(table, machine, state.resolved.axes).seconds for table in (cost.forward, cost.backward)]
        for kind, cost in state.costs.items()
    }
    layers: list[list[float]] = []
    fixed = np.zeros((2, len(state.chunks)))
    for number, chunk in enumerate(state.chunks):
        for place, kind in enumerate(chunk.kinds):
            if place - chunk.embedding < chunk.layers and is_layer(kind):
                layers.append(each[kind])
            else:
                fixed[:, number] += each[kind]
    balanced = tuple(chunk.layers for chunk in state.chunks)
    if len(layers) != sum(balanced):
        raise PlanError(
            f"layers of model {job.workload.model.name!r} are not dealt out by time: it has more than one stack"
        )
    return Work(np.array(layers).T, fixed, state.placement.rank_of[0], balanced)


def check_dealt(chunks: int) -> None:
    """Refuse to deal out layers over one chunk.

    Raises:
        PlanError: there is one.
    """
    if chunks < 2:
        raise PlanError("layers are dealt out by time over the chunks of pipeline ranks, but there is 1 chunk")


Times = tuple[float, ...]
"""Seconds of each layer, or of what stays in each chunk."""


@functools.lru_cache(maxsize=4096)
def _dealt(seconds: Times, fixed: Times, rank_of: Counts | None, balanced: Counts) -> Counts:
    """The split of a model's layers: plans that differ in what no kernel sees have the same.

    Args:
        rank_of: of chunks; None where every rank has one.
        balanced: what to begin with, where ranks have several.
    """
    if rank_of is None:
        return _least(seconds, fixed)
    return _moved(np.array(seconds), np.array(fixed), np.array(rank_of), np.array(balanced))


def _least(seconds: Times, fixed: Times) -> Counts:
    """The split whose busiest chunk takes least; of these the one with the fewest layers in front, where most activations stand."""
    low, high = max(seconds), sum(seconds) + sum(fixed)
    best = _filled(seconds, fixed, high)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        found = _filled(seconds, fixed, middle)
        low, high = (low, middle) if found else (middle, high)
        best = found or best
    return best


def _filled(seconds: Times, fixed: Times, most: float) -> Counts:
    """Fill chunks from the last one on, none above `most`, each with a layer at least; () where that does not do."""
    counts, left = [], len(seconds)
    for chunk in range(len(fixed) - 1, -1, -1):
        room, count = most - fixed[chunk], 0
        while left > chunk and (seconds[left - 1] <= room or not count):
            left -= 1
            room -= seconds[left]
            count += 1
        if not count or room < 0:
            return ()
        counts.append(count)
    return tuple(counts[::-1]) if left == 0 else ()


def _moved(seconds: Seconds, fixed: Seconds, rank_of: NDArray[np.int64], counts: NDArray[np.int64]) -> Counts:
    """Move layers, one by one, from chunks of the busiest rank to chunks of others."""
    before = np.concatenate([[0.0], np.cumsum(seconds)])

    def busy(some: NDArray[np.int64]) -> Seconds:
        ends = np.cumsum(some)
        chunks = before[ends] - before[ends - some] + fixed
        return np.bincount(rank_of, weights=chunks).astype(np.float64)

    now = busy(counts)
    while True:
        order = np.argsort(now)
        giver, taker = int(order[-1]), int(order[0])
        best: tuple[float, NDArray[np.int64]] | None = None
        for give in np.flatnonzero((rank_of == giver) & (counts > 1))[::-1]:
            for take in np.flatnonzero(rank_of == taker)[::-1]:
                tried = counts.copy()
                tried[give] -= 1
                tried[take] += 1
                longest = float(busy(tried).max())
                if longest < now.max() * (1.0 - 1e-12) and (best is None or longest < best[0]):
                    best = longest, tried
        if best is None:
            return tuple(int(count) for count in counts)
        counts = best[1]
        now = busy(counts)
