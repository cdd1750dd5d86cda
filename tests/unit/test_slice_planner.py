"""The slices that TeraPipe's planner cuts are the best there are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import PlanError
from simulator.schedules.terapipe import plan_slices


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(0, 5), st.integers(0, 3), st.integers(0, 9))
def test_no_other_cut_is_better(length: int, ranks: int, linear: int, square: int, fixed: int) -> None:
    def seconds(tokens: int, before: int) -> float:
        return fixed + linear * tokens + square * tokens * (tokens + 2 * before)

    def cost(slices: tuple[int, ...]) -> float:
        before = [0, *itertools.accumulate(slices)]
        times = [seconds(tokens, done) for tokens, done in zip(slices, before, strict=False)]
        return sum(times) + (ranks - 1) * max(times)

    every = [
        tuple(b - a for a, b in itertools.pairwise((0, *cuts, length)))
        for n in range(length)
        for cuts in itertools.combinations(range(1, length), n)
    ]
    slices, time = plan_slices(length, ranks, seconds)
    assert sum(slices) == length
    assert min(map(cost, every)) == pytest.approx(time) == pytest.approx(cost(slices))


def test_causal_attention_makes_later_slices_shorter() -> None:
    slices, _ = plan_slices(4096, 8, lambda tokens, before: 300 + tokens + tokens * (tokens + 2 * before) / 2048, 128)
    assert 4096 == sum(slices)
    assert list(slices) == sorted(slices, reverse=True)
    assert slices[0] > slices[-1]


@pytest.mark.parametrize(("length", "ranks", "step"), [(10, 2, 3), (0, 2, 1), (8, 0, 1), (8, 2, 0)])
def test_a_sequence_that_cannot_be_cut_is_refused(length: int, ranks: int, step: int) -> None:
    with pytest.raises(PlanError, match="whole steps"):
        plan_slices(length, ranks, lambda tokens, before: 1.0, step)
