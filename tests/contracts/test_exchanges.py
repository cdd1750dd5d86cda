"""The contract of gradient exchanges over every member of the family, and over members that break it."""

from __future__ import annotations

import pytest

from simulator.lowering.exchanges import EXCHANGES
from simulator.lowering.exchanges.base import EVERY_STEP, GradientExchange, Part, StepKind, Terms, send
from simulator.lowering.layers.rows import Rows
from simulator.testing.exchange_contract import ExchangeContract


@pytest.mark.parametrize("member", list(EXCHANGES), ids=lambda member: member.name)
def test_every_exchange_keeps_the_contract(member: GradientExchange) -> None:
    ExchangeContract(member).check_all()


class _Broken(GradientExchange):
    name, source, unsaid, kept = "test_exchanges", "nowhere", "all", (EVERY_STEP,)

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        return self.kept


def test_the_contract_says_what_is_broken() -> None:
    ExchangeContract(_Broken()).check_all()
    for field, value, said in (
        ("name", "other", "name of its file"),
        ("source", " ", "source"),
        ("unsaid", "", "does not tell"),
        ("options", {"flavour": None}, "'flavour' is a choice of a plan"),
        ("kept", (StepKind("one", 0.5),), "add up to 1"),
        ("kept", (StepKind("one", 0.0), StepKind("two", 1.0)), "every kind of step occurs"),
        ("kept", (StepKind("one", 0.5), StepKind("one", 0.5)), "a name of its own"),
        ("kept", (StepKind("one", 0.5), StepKind("two", 0.5, adds=False)), "least to send comes first"),
        ("kept", (StepKind("one", adds=False),), "something is sent"),
        ("kept", (StepKind("one", exchanges=True),), "has rows for it"),
    ):
        member = _Broken()
        setattr(member, field, value)
        with pytest.raises(AssertionError, match=said):
            ExchangeContract(member).check_all()


@pytest.mark.parametrize(("collective", "dtype"), [("allgather", "fp32"), ("all_gather", "fp33")])
def test_words_that_no_price_knows_are_caught(collective: str, dtype: str) -> None:
    """Else the first prediction that uses the exchange finds them."""

    class Slip(_Broken):
        kept = (StepKind("one", exchanges=True),)

        def before(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
            send(rows, "values", part, collective, part.weights, dtype)

    with pytest.raises(AssertionError, match=r"it sends by (allgather|fp33); known: "):
        ExchangeContract(Slip()).check_all()
