"""Axis after axis: the best division over the first mesh axis, then of what is left over the next, as ToFu halves recursively.

Each step is exact for its axis, the choices of those before being fixed; the whole need not be.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simulator.planners.base import Oracle, Planner
from simulator.planners.elimination import eliminate
from simulator.planners.problems.layouts import Choices, Layouts

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
        known: list[tuple[str, ...]] | None = None
        for level in levels:
            costs = [
                cost if known is None else np.where([_extends(label, known[number]) for label in labels], cost, np.inf)
                for number, (cost, labels) in enumerate(zip(level.costs, level.labels, strict=True))
            ]
            plan, priced = eliminate(level, costs)
            oracle.priced(priced)
            known = [labels[choice] for labels, choice in zip(level.labels, plan, strict=True)]
        oracle.cost(plan)
        return None


def _extends(label: tuple[str, ...], known: tuple[str, ...]) -> bool:
    return label[: len(known)] == known
