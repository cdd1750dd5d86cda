"""Every layout keeps the strategy contract, and the contract has teeth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.errors import LayoutError
from simulator.partition import propagate
from simulator.partition.compose import compose
from simulator.partition.layout import PARTIAL, Layout, Shard
from simulator.partition.redistribute import redistribute
from simulator.partition.strategies import STRATEGIES
from simulator.partition.strategies.base import Strategy
from simulator.partition.strategies.megatron import Megatron
from simulator.testing.strategy_contract import StrategyContract


@pytest.mark.parametrize("strategy", list(STRATEGIES), ids=lambda s: str(s.name))
def test_every_strategy_keeps_the_contract(strategy: Strategy) -> None:
    StrategyContract(strategy).check_all()


def run(layout: Layout) -> None:
    """Run some random chains on ranks."""
    contract = StrategyContract(Megatron())
    for seed in range(12):
        random = np.random.default_rng(seed)
        contract.check_numbers(layout, contract.chain(layout, random), random)


def test_a_collective_that_is_forgotten_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever kind of collective a derivation leaves out, some rank ends with the wrong numbers or the wrong part."""
    layout = compose("megatron", 4, True)
    run(layout)
    for name in ("all_gather", "reduce_scatter", "all_reduce"):

        def without(held: Any, wanted: Any, name: str = name) -> Any:
            return tuple(move for move in redistribute(held, wanted) if move.collective != name)

        monkeypatch.setattr(propagate, "redistribute", without)
        with pytest.raises((AssertionError, ValueError)):
            run(layout)


def test_a_sum_that_is_taken_for_a_part_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    real = propagate.wanted

    def careless(along: Any, tensor: Any, result: bool = False) -> Any:
        found = real(along, tensor, result)
        return {axis: Shard(tensor.dims[0].name) if place == PARTIAL else place for axis, place in found.items()}

    monkeypatch.setattr(propagate, "wanted", careless)
    with pytest.raises((AssertionError, ValueError)):
        run(compose("megatron", 4))


class Twice(Strategy):
    """Divides both dimensions of the MLP's weights."""

    name = "twice"
    source = "a wrong idea"
    dims = frozenset(("ffn", "hidden"))


def test_a_strategy_that_divides_a_weight_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES.members, "twice", Twice())
    monkeypatch.delitem(STRATEGIES.__dict__, "_aliases", raising=False)
    with pytest.raises(
        LayoutError, match=r"layout 'twice' lays ffn and hidden of \(hidden, ffn\) both on mesh axis 'tensor'"
    ):
        StrategyContract(Twice()).check_all()
    STRATEGIES.__dict__.pop("_aliases", None)
