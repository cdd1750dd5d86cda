"""Every layout computes what one rank computes, and the contract has teeth."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from simulator.errors import LayoutError
from simulator.partition import operands
from simulator.partition.layout import Layout, Rule, rule
from simulator.partition.redistribute import redistribute
from simulator.partition.strategies import STRATEGIES
from simulator.partition.strategies.base import Strategy
from simulator.partition.strategies.sequence import TOKENS
from simulator.testing.layout_contract import check_layout


def layouts(member: Strategy) -> list[Layout]:
    """A strategy's rules on meshes of two ranks per axis, alone and with what else a plan may lay: data, tokens."""
    rules = member.rules()
    axes = list(dict.fromkeys(axis for rule in rules for axis in rule.axes))
    more: list[tuple[Rule, ...]] = [()]
    if not any("batch" in rule.dims for rule in rules):
        more += [(rule("data", "batch"),), (rule("data", "batch"), TOKENS)]
    mesh = (("data", 2), *((axis, 2) for axis in axes))
    return [Layout(member.name, mesh, (*rules, *some), output_stationary=member.output_stationary) for some in more]


@pytest.mark.parametrize("member", list(STRATEGIES), ids=lambda s: str(s.name))
def test_every_strategy_computes_what_one_rank_does(member: Strategy) -> None:
    for layout in layouts(member):
        check_layout(layout)


WAYS = ("batch", "sequence", "hidden", "heads", "ffn", "vocabulary")


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(WAYS, 2)))
def test_any_two_dimensions_on_two_axes_compute_what_one_rank_does(one: str, other: str) -> None:
    check_layout(Layout("two", (("rows", 2), ("cols", 4)), (rule("rows", one), rule("cols", other))))


def test_two_dimensions_of_a_tensor_on_one_axis_are_refused() -> None:
    with pytest.raises(LayoutError, match="hidden and vocabulary of"):
        check_layout(Layout("one", (("rows", 2),), (rule("rows", "hidden", "vocabulary"),)))


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_kind_of_collective_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def without(held: Any, wanted: Any) -> Any:
        return tuple(move for move in redistribute(held, wanted) if move.collective != name)

    layout = layouts(STRATEGIES.get("megatron"))[-1]
    check_layout(layout)
    monkeypatch.setattr(operands, "redistribute", without)
    with pytest.raises((AssertionError, ValueError)):
        check_layout(layout)
