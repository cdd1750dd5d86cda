"""The best placement of blocks in a row: a dynamic programme over a chain, quick for any graph, of each of four depth-first orders."""

from __future__ import annotations

from simulator.planners.base import Oracle, Planner
from simulator.planners.ideals import best_in_rows, without_idle
from simulator.planners.problems.placement import Assignment, Placement

__all__ = ["Linearised"]


class Linearised(Planner[Assignment]):
    """Four depth-first orders, then the best cuts of each (`linear_order.in_rows`)."""

    name = "linearised"
    source = "arXiv 2006.16423"
    solves = Placement
    best_of = "cuts of four orders"

    def plan(self, problem: Placement, oracle: Oracle[Assignment], seed: int) -> float | None:
        """See `Planner.plan`."""
        small, block_of = without_idle(problem)
        best_in_rows(small, oracle, block_of)
        return None
