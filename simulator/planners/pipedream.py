"""PipeDream's planner: stages, replicas and levels of the network by one dynamic programme per level.

A[i, j, m], the pace of the best pipeline over what ideal j has beyond i on m members, is the least over the last cut k and the replicas
r of the last stage of max(A[i, k, m - r], message at k, one stage from k to j on r members).  A level takes the paces of the level below,
with all of its members, as the work of one of its own.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.pipeline import Pipeline, Stage

__all__ = ["PipeDream"]

Paces = NDArray[np.float64]
_ONE = -1
"""In the place of the last cut: there is one stage."""


class PipeDream(Planner[tuple[Stage, ...]]):
    """The best replicated stages, level by level."""

    name = "pipedream"
    aliases: ClassVar[tuple[str, ...]] = ("hierarchical",)
    source = "Narayanan et al., SOSP 2019; msr-fiddle/pipedream, optimizer_graph_hierarchical.py"
    solves = Pipeline
    best_of = "all pipelines"

    def exact(self, problem: Pipeline) -> bool:
        """See `Planner.exact`: where a pipeline drains its plan is of the best pace, not of the best step."""
        return not problem.drains

    def covers(self, problem: Pipeline, plan: tuple[Stage, ...]) -> bool:
        """See `Planner.covers`."""
        return self.exact(problem)

    def plan(self, problem: Pipeline, oracle: Oracle[tuple[Stage, ...]], seed: int) -> float | None:
        """See `Planner.plan`."""
        size = len(problem.states)
        member = np.where(problem.inside, problem.work[None, :] - problem.work[:, None], np.inf)
        tables = []
        for level in range(len(problem.levels)):
            last = level == len(problem.levels) - 1
            table = _Level(problem, level, member, 1 if last else size, oracle)
            tables.append(table)
            member = table.paces[-1]
        oracle.cost(_stages(tables, len(tables) - 1, 0, size - 1))
        return oracle.least if self.exact(problem) else None


class _Level:
    """Paces of the best pipelines of one level, and how they end.

    Attributes:
        paces: [m - 1][i, j] of pipelines on m members that begin at one of the first `starts` ideals.
        cuts: the same: (last cut or `_ONE`, replicas of the last stage).
    """

    def __init__(
        self, problem: Pipeline, level: int, member: Paces, starts: int, oracle: Oracle[tuple[Stage, ...]]
    ) -> None:
        members = problem.levels[level].members
        weights = problem.weights[None, :] - problem.weights[:, None]
        single = [problem.replicated(level, replicas, member, weights) for replicas in range(1, members + 1)]
        message = problem.message(level, np.arange(len(member)))[:, None]
        behind = [np.maximum(one, message) for one in single]
        self.paces: list[Paces] = []
        self.cuts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for count in range(1, members + 1):
            best = single[count - 1][:starts].copy()
            cut, replicas = np.full(best.shape, _ONE), np.full(best.shape, count)
            for own in range(1, count):
                oracle.check()
                before = self.paces[count - own - 1]
                for middle in np.flatnonzero(np.isfinite(before).any(axis=0)):
                    pace = np.maximum(before[:, middle, None], behind[own - 1][middle])
                    better = pace < best
                    best[better], cut[better], replicas[better] = pace[better], middle, own
                    oracle.priced(pace.size)
            oracle.priced(best.size)
            self.paces.append(best)
            self.cuts.append((cut, replicas))


def _stages(tables: list[_Level], level: int, begin: int, end: int) -> tuple[Stage, ...]:
    """The stages of the best pipeline between two ideals on all members of a level."""
    found: list[Stage] = []
    count, now = len(tables[level].paces), end
    while now != begin and count:
        cuts, replicas = tables[level].cuts[count - 1]
        cut, own = int(cuts[begin, now]), int(replicas[begin, now])
        start = begin if cut == _ONE else cut
        found.insert(0, Stage(now, own, _stages(tables, level - 1, start, now) if level else ()))
        count, now = count - own, start
    return tuple(found)
