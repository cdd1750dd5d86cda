"""Monte Carlo tree search over layouts: few operations are decided, all others follow from their neighbours.

The tree decides operation after operation, those first whose choices differ most in what their weights' gradients move; a leaf is
completed by propagation, each operation left taking what costs least beside the neighbours that have their choice.  Which branch is tried
next follows the upper confidence bound of what its leaves were worth (Automap decides inputs and weights and propagates through a program).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.layouts import Choices, Layouts

__all__ = ["TreeSearch", "propagated"]

_LEAVES = 1_000
_CURIOUS = 0.5
"""Weight of what was tried little, beside a worth between 0 and 1."""


class TreeSearch(Planner[Choices]):
    """Upper confidence bounds on a tree of decisions."""

    name = "tree_search"
    aliases: ClassVar[tuple[str, ...]] = ("mcts",)
    source = "Schaarschmidt et al., Automap, arXiv 2112.02958; Kocsis and Szepesvari 2006 (UCT)"
    solves = Layouts
    draws = True

    def plan(self, problem: Layouts, oracle: Oracle[Choices], seed: int) -> float | None:
        """See `Planner.plan`."""
        random = np.random.default_rng(seed)
        spread = [float(np.ptp(costs)) for costs in problem.costs]
        order = sorted((n for n, costs in enumerate(problem.costs) if len(costs) > 1), key=lambda n: (-spread[n], n))
        visits: dict[Choices, int] = {}
        worth: dict[Choices, float] = {}
        first = oracle.cost(propagated(problem, {}))
        for _ in range(_LEAVES * bool(order)):
            if oracle.over:
                break
            branch: Choices = ()
            while len(branch) < len(order):
                size = len(problem.costs[order[len(branch)]])
                ways = [(*branch, choice) for choice in range(size)]
                new = [way for way in ways if way not in visits]
                if new:
                    branch = new[int(random.integers(len(new)))]
                    break
                branch = max(ways, key=lambda way: _bound(worth[way], visits[way], visits.get(way[:-1], 1)))
            plan = propagated(problem, dict(zip(order, branch, strict=False)))
            cost = oracle.cost(plan)
            best = oracle.least if oracle.best else first
            value = 1.0 if cost <= best else best / cost
            for depth in range(len(branch) + 1):
                part = branch[:depth]
                visits[part] = visits.get(part, 0) + 1
                worth[part] = worth.get(part, 0.0) + (value - worth.get(part, 0.0)) / visits[part]
        return None


def _bound(worth: float, visits: int, above: int) -> float:
    return worth + _CURIOUS * math.sqrt(math.log(max(above, 2)) / visits)


def propagated(problem: Layouts, decided: dict[int, int]) -> Choices:
    """Return a whole layout: every operation that is not decided takes what costs least beside its neighbours, those with some first."""
    near: list[list[tuple[int, NDArray[np.float64]]]] = [[] for _ in problem.costs]
    for (a, b), table in problem.edges.items():
        near[a].append((b, table))
        near[b].append((a, table.T))
    plan = dict(decided)
    left = [number for number in range(len(problem.costs)) if number not in plan]
    while left:
        number = next((one for one in left if any(other in plan for other, _ in near[one])), left[0])
        costs = problem.costs[number].copy()
        for other, table in near[number]:
            if other in plan:
                costs = costs + table[:, plan[other]]
        plan[number] = int(costs.argmin())
        left.remove(number)
    return tuple(plan[number] for number in range(len(problem.costs)))
