"""Alpa's outer dynamic programme: for every time that the slowest stage may take, the least sum of all stages.

F[m, j], the least sum of stages up to ideal j on m devices none of which takes more than t, is the least over the last stage of
F[m - r, i] + t_i.  Times t are tried from the shortest on with which there is a pipeline, until (B - 1) t and the least sum of any
pipeline are more than the best step known.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.pipeline import Stage
from simulator.planners.problems.synchronous import Synchronous

__all__ = ["AlpaStages"]


class AlpaStages(Planner[tuple[Stage, ...]]):
    """The best stages and replicas of a step."""

    name = "alpa_stages"
    source = "Zheng et al., Alpa, OSDI 2022"
    solves = Synchronous
    best_of = "all pipelines"

    def covers(self, problem: Synchronous, plan: tuple[Stage, ...]) -> bool:
        """See `Planner.covers`."""
        return True

    def plan(self, problem: Synchronous, oracle: Oracle[tuple[Stage, ...]], seed: int) -> float | None:
        """See `Planner.plan`."""
        size = len(problem.states)
        begin, end = np.arange(size)[:, None], np.arange(size)[None, :]
        seconds = np.stack(
            [
                np.where(problem.inside, problem.stage_seconds(begin, end, replicas), np.inf)
                for replicas in range(1, problem.devices + 1)
            ]
        )
        least, stages = _best(seconds, np.inf, oracle)
        oracle.priced(seconds.size)
        oracle.cost(stages)
        times = np.unique(seconds[np.isfinite(seconds)])
        first = bisect.bisect_left(
            times, True, key=lambda slowest: np.isfinite(_best(seconds, float(slowest), oracle)[0])
        )
        for slowest in times[first:]:
            if (problem.microbatches - 1) * slowest + least >= oracle.least:
                break
            if oracle.over:
                return None
            _, stages = _best(seconds, float(slowest), oracle)
            oracle.priced(int((seconds <= slowest).sum()))
            oracle.cost(stages)
        return oracle.least


def _best(
    seconds: NDArray[np.float64], slowest: float, oracle: Oracle[tuple[Stage, ...]]
) -> tuple[float, tuple[Stage, ...]]:
    """The least sum of stages on all devices, none longer than so many seconds, and these stages."""
    devices, size, _ = seconds.shape
    allowed = np.where(seconds <= slowest, seconds, np.inf)
    sums = np.full((devices + 1, size), np.inf)
    sums[0, 0] = 0.0
    came = np.zeros((devices + 1, size, 2), np.int64)
    for count in range(1, devices + 1):
        oracle.check()
        for replicas in range(1, count + 1):
            reached = np.flatnonzero(np.isfinite(sums[count - replicas]))
            if not len(reached):
                continue
            ways = sums[count - replicas][reached, None] + allowed[replicas - 1][reached]
            pick = ways.argmin(axis=0)
            value = ways[pick, np.arange(size)]
            better = value < sums[count]
            sums[count, better] = value[better]
            came[count, better, 0], came[count, better, 1] = reached[pick][better], replicas
    total = float(sums[devices, size - 1])
    if not np.isfinite(total):
        return total, ()
    stages: list[Stage] = []
    count, now = devices, size - 1
    while count:
        before, replicas = came[count, now].tolist()
        stages.insert(0, Stage(now, replicas, ()))
        count, now = count - replicas, before
    return total, tuple(stages)
