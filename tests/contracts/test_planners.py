"""Every planner keeps the contract: valid plans, true prices and bounds, equal to all plans tried where it says so."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.planners import PLANNERS
from simulator.planners.base import Planner
from simulator.planners.ideals import Ideals
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
