"""Every plan, one after another: what the others are held against."""

from __future__ import annotations

from typing import Any, ClassVar

from simulator.planners.base import Oracle, Planner, Problem

__all__ = ["Exhaustive"]


class Exhaustive(Planner[Any]):
    """All plans of any problem, for small ones."""

    name = "exhaustive"
    aliases: ClassVar[tuple[str, ...]] = ("brute_force",)
    source = "plain enumeration"
    solves = Problem
    best_of = "all plans"

    def covers(self, problem: Any, plan: Any) -> bool:
        """See `Planner.covers`."""
        return True

    def plan(self, problem: Problem[Any], oracle: Oracle[Any], seed: int) -> float | None:
        """See `Planner.plan`."""
        for plan in problem.every_plan():
            oracle.cost(plan)
            if oracle.over:
                return None
        return oracle.least
