"""Axis after axis: the best division over the first mesh axis, then of what is left over the next, as ToFu halves recursively.

Each step is exact for its axis, the choices of those before being fixed; the whole need not be.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simulator.planners.base import Oracle, Planner
from simulator.planners.elimination import eliminate
from simulator.planners.problems.layouts import Along, Choices, Layouts

__all__ = ["Recursive"]


class Recursive(Planner[Choices]):
    """A dynamic programme per axis."""

    name = "recursive"
    aliases: ClassVar[tuple[str, ...]] = ("tofu",)
    source = "Wang, Huang and Li, EuroSys 2019 (ToFu)"
    solves = Layouts

    def plan(self, problem: Layouts, oracle: Oracle[Choices], seed: int) -> float | None:
        """See `Planner.plan`."""
        levels = [problem]
        while levels[0].coarser is not None:
            levels.insert(0, levels[0].coarser)
        known: list[frozenset[Along]] = [frozenset()] * len(problem.names)
        for level in levels:
            costs = [
                np.where([divided <= frozenset(choice) for choice in choices], cost, np.inf)
                for cost, choices, divided in zip(level.costs, level.divides, known, strict=True)
            ]
            plan, priced = eliminate(level, costs)
            oracle.priced(priced)
            known = [frozenset(choices[choice]) for choices, choice in zip(level.divides, plan, strict=True)]
        oracle.cost(plan)
        return None
