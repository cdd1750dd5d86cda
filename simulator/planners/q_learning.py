"""Layouts by learning what a choice is worth: operation after operation, mostly the choice that is thought to cost least until the end.

What is learned is a table of costs to go, by operation, its choice and the choices of the neighbours before it, so it learns this layer and
mesh and no other; Auto-MAP's is a network over a whole program, trained for hours, and it decides few operations and propagates.  It is
here to be compared by the evaluations it takes.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.layouts import Choices, Layouts

__all__ = ["QLearning"]

_LAYOUTS = 1_000
_RATE = 0.5
"""Part of the way that a value goes to what was seen."""
_LAST = 0.02
"""Part of the choices that are drawn in the end; all are at first."""

State = tuple[int, Choices]


class QLearning(Planner[Choices]):
    """Watkins' rule, with less and less drawn."""

    name = "q_learning"
    aliases: ClassVar[tuple[str, ...]] = ("dqn",)
    source = "Wang et al., Auto-MAP, arXiv 2007.04069; Watkins 1989"
    solves = Layouts
    draws = True

    def plan(self, problem: Layouts, oracle: Oracle[Choices], seed: int) -> float | None:
        """See `Planner.plan`."""
        random = np.random.default_rng(seed)
        behind: list[list[tuple[int, NDArray[np.float64]]]] = [[] for _ in problem.costs]
        for (a, b), table in problem.edges.items():
            behind[b].append((a, table))
        values: dict[State, NDArray[np.float64]] = {}
        worst = float(sum(one.max() for one in (*problem.costs, *problem.edges.values())))

        def to_go(state: State) -> NDArray[np.float64]:
            return values.setdefault(state, np.zeros(len(problem.costs[state[0]])))

        for layout in range(_LAYOUTS):
            if oracle.over:
                break
            drawn = max(_LAST, 1 - 2 * layout / _LAYOUTS)
            plan: list[int] = []
            seen: list[tuple[State, int, float]] = []
            for number, costs in enumerate(problem.costs):
                state = number, tuple(plan[a] for a, _ in behind[number])
                known = to_go(state)
                choice = int(random.integers(len(known)) if random.random() < drawn else known.argmin())
                moved = float(costs[choice]) + math.fsum(float(table[plan[a], choice]) for a, table in behind[number])
                plan.append(choice)
                seen.append((state, choice, moved))
            rest = worst * math.isinf(oracle.cost(tuple(plan)))
            for state, choice, moved in reversed(seen):
                known = to_go(state)
                known[choice] += _RATE * (moved + rest - known[choice])
                rest = float(known.min())
        return None
