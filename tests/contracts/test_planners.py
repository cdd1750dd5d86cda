"""Every planner keeps the contract: valid plans, true prices and bounds, equal to all plans tried where it says so."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.planners import PLANNERS
from simulator.planners.base import Planner
from simulator.planners.ideals import Ideals
from simulator.planners.problems.placement import Assignment, Placement
from simulator.testing.planner_contract import PlannerContract


@pytest.mark.parametrize("planner", list(PLANNERS), ids=lambda p: str(p.name))
def test_every_planner_keeps_the_contract(planner: Planner[Any]) -> None:
    """Of those that draw, which price thousands of plans, on some problems (all of them: the next one)."""
    PlannerContract(planner).check_all(2 if planner.draws else 25)


@pytest.mark.slow
@pytest.mark.parametrize("planner", [p for p in PLANNERS if p.draws], ids=lambda p: str(p.name))
def test_planners_that_draw_keep_it_on_more_problems(planner: Planner[Any]) -> None:
    PlannerContract(planner).check_all()


class Worse(Ideals):
    """Says more than it does."""

    name = "worse"

    def covers(self, problem: Any, plan: Any) -> bool:
        return True


def test_who_says_too_much_is_caught() -> None:
    with pytest.raises(AssertionError, match="but the best of contiguous placements is"):
        PlannerContract(Worse()).check_all(60)


class Silent(Planner[Assignment]):
    """Offers nothing, or what is no plan."""

    name, source, solves = "silent", "nowhere", Placement
    offered: Any = None

    def plan(self, problem: Any, oracle: Any, seed: int) -> float | None:
        if self.offered is not None:
            oracle.cost(self.offered)
        return None


@pytest.mark.parametrize("offered", [None, (99,)])
def test_who_offers_no_plan_is_caught(offered: Any) -> None:
    """Where nothing is found the planner says that no plan can hold; it may not say so of every problem."""
    planner = Silent()
    planner.offered = offered
    with pytest.raises(AssertionError, match=r"it offered no plan that holds, though \d+ of 5 problems have one"):
        PlannerContract(planner).check_all(5)
