"""Every search strategy keeps its contract, and the contract has teeth."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.search.run import Run
from simulator.search.strategies import STRATEGIES
from simulator.search.strategies.base import Strategy
from simulator.search.strategies.random import Random
from simulator.testing.search_contract import SearchContract


@pytest.mark.parametrize("strategy", list(STRATEGIES), ids=lambda s: str(s.name))
def test_every_strategy_keeps_the_contract(strategy: Strategy) -> None:
    if strategy.name == "bayesian":
        pytest.importorskip("optuna")
    SearchContract(strategy).check_all()


class _Some(Strategy):
    """Simulates what it is told to, and says that this was all."""

    name, source, proves = "test_searches", "nowhere", "nothing"
    draws, plans, says_all = True, (0, 5, 11), False

    def search(self, run: Run, tries: int, seed: int) -> None:
        run.simulate(list(run.looks(self.plans)))
        run.complete = self.says_all


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "other"}, "its name is the name of its file, 'test_searches'"),
        ({"source": ""}, "it says its source"),
        ({"plans": ()}, "it finds a plan that fits"),
        ({"plans": range(24)}, "it simulates at most 8 plans"),
        ({"exact": True, "draws": False, "says_all": True}, "it proves .* s the best, which is"),
        ({"exact": True, "draws": False}, "it ends with the proof that it promises"),
    ],
)
def test_who_breaks_it_is_caught(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        SearchContract(type("Broken", (_Some,), {"__module__": __name__, **changes})()).check_all()


def test_a_strategy_whose_answer_changes_from_time_to_time_is_caught() -> None:
    class Moody(Random):
        name = "test_searches"
        turn = 0

        def search(self, run: Run, tries: int, seed: int) -> None:
            Moody.turn += 1
            super().search(run, tries, Moody.turn)

    with pytest.raises(AssertionError, match="the same seed gives the same answer"):
        SearchContract(Moody()).check_all()
