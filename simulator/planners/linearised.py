"""The best placement of one order of the blocks: a dynamic programme over a chain, quick for any graph."""

from __future__ import annotations

from simulator.planners.base import Oracle, Planner
from simulator.planners.ideals import best_in_rows, without_idle
from simulator.planners.problems.placement import Assignment, Placement

__all__ = ["Linearised"]


class Linearised(Planner[Assignment]):
    """Depth-first order, then the best cuts of it."""

    name = "linearised"
    source = "arXiv 2006.16423"
    solves = Placement
    best_of = "cuts of one order"

    def plan(self, problem: Placement, oracle: Oracle[Assignment], seed: int) -> float | None:
        """See `Planner.plan`."""
        small, block_of = without_idle(problem)
        best_in_rows(small, oracle, block_of)
        return None
