"""Alpa's outer dynamic programme: for every time that the slowest stage may take, the least sum of all stages.

Stages are put in front of one another from the last on, so that their number says how many microbatches the next keeps.  Of ideal, stages
and devices so far only the least sum matters; times are tried from the shortest on with which there is a pipeline, until (B - 1) times it
and the least sum of any pipeline are more than the best step known.  The programme is run once more with what no choice of ways goes below.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.planners.base import Oracle, Planner
from simulator.planners.equal_stages import equal_pipelines
from simulator.planners.problems.hybrid import Stages
from simulator.planners.problems.meshes import Meshes
from simulator.planners.stage_table import StageTable

__all__ = ["AlpaMeshes"]

Numbers = NDArray[np.float64]


class AlpaMeshes(Planner[Stages]):
    """The best stages and meshes, and nearly the best ways."""

    name = "alpa_meshes"
    source = "Zheng et al., Alpa, OSDI 2022"
    solves = Meshes

    def plan(self, problem: Meshes, oracle: Oracle[Stages], seed: int) -> float | None:
        """See `Planner.plan`."""
        if not problem.degrees:
            return None
        for equal in equal_pipelines(problem):
            oracle.cost(equal)
        table = StageTable(problem, oracle.least / problem.microbatches)
        oracle.priced(table.priced)

        def priced(sums: _Sums, slowest: float) -> float:
            return oracle.cost(sums.stages())

        def below(sums: _Sums, slowest: float) -> float:
            return sums.least + (problem.microbatches - 1) * slowest

        for seconds, step in ((table.seconds, priced), (table.bounds, below)):
            best = oracle.least
            found = _search(table, seconds, oracle, best, step)
        return best if found is None and not oracle.over else found


def _search(
    table: StageTable,
    seconds: list[Numbers],
    oracle: Oracle[Stages],
    known: float,
    step: Callable[[_Sums, float], float],
) -> float | None:
    """The least step over all times of the slowest stage; None where there is none or the budget ended before."""
    others = table.problem.microbatches - 1
    times = np.unique(np.concatenate([one[one < known] for one in seconds]))
    least = _Sums(table, seconds, np.inf).least
    if not np.isfinite(least):
        return None
    first = bisect.bisect_left(times, True, key=lambda slowest: _Sums(table, seconds, float(slowest)).least < np.inf)
    for slowest in times[first:].tolist():
        if others * slowest + least >= known:
            break
        if oracle.over:
            return None
        oracle.priced(1)
        known = min(known, step(_Sums(table, seconds, slowest), slowest))
    return known


class _Sums:
    """The least sum of stages, none longer than so many seconds.

    Attributes:
        sums: (ideals, stages, devices) s of pipelines from an ideal on.
        came: the same: (degrees, ideals of the stage in front).
        least: of all pipelines of the whole graph.
    """

    def __init__(self, table: StageTable, seconds: list[Numbers], slowest: float) -> None:
        problem = table.problem
        self.table, states, most = table, len(problem.states), problem.devices
        self.sums = np.full((states, most + 1, most + 1), np.inf)
        self.sums[-1, 0, 0] = 0.0
        self.came = np.zeros((*self.sums.shape, 2), np.int64)
        stages: list[list[tuple[int, int, Numbers]]] = [[] for _ in range(states)]
        for degrees, (rows, times) in enumerate(zip(table.rows, seconds, strict=True)):
            fits = (times <= slowest).sum(axis=0)
            for column in np.flatnonzero(fits).tolist():
                pair = int(rows[column])
                stages[table.pairs[pair, 0]].append((degrees, pair, times[: fits[column], column]))
        for begin in range(states - 2, -1, -1):
            for degrees, pair, own in stages[begin]:
                devices = problem.degrees[degrees][0]
                ways = self.sums[table.pairs[pair, 1], : len(own), : most + 1 - devices] + own[:, None]
                into = self.sums[begin, 1 : len(own) + 1, devices:]
                better = ways < into
                into[better] = ways[better]
                self.came[begin, 1 : len(own) + 1, devices:][better] = degrees, pair
        self.least = float(self.sums[0].min())

    def stages(self) -> Stages:
        """Return the stages of the least sum."""
        state, found = 0, []
        count, devices = (int(one) for one in np.unravel_index(self.sums[0].argmin(), self.sums[0].shape))
        while state != len(self.sums) - 1:
            degrees, pair = self.came[state, count, devices].tolist()
            found.append(self.table.stage(degrees, pair, count))
            state, count = int(self.table.pairs[pair, 1]), count - 1
            devices -= self.table.problem.degrees[degrees][0]
        return tuple(found)
