"""The front of a search's plans: what no other plan beats in time, memory, GPUs and price at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simulator.search.answer import pareto_front


def plan(number: int, seconds: float, size: float, gpus: int = 8, price: float | None = None) -> Any:
    return SimpleNamespace(
        step_time=seconds, peak_memory=size, gpus=gpus, price=price, point=SimpleNamespace(number=number)
    )


@pytest.mark.parametrize(
    ("plans", "left"),
    [
        ([plan(0, 1.0, 9.0), plan(1, 2.0, 8.0), plan(2, 2.0, 8.5)], [0, 1]),
        ([plan(0, 1.0, 9.0, gpus=16), plan(1, 1.5, 9.0, gpus=8)], [0, 1]),
        ([plan(0, 1.0, 9.0, price=3.0), plan(1, 1.0, 9.0, price=2.0)], [1]),
        ([plan(0, 1.0, 9.0), plan(1, 1.0, 9.0)], [0]),
        ([], []),
    ],
)
def test_what_nothing_beats_is_left(plans: list[Any], left: list[int]) -> None:
    """Also of plans that differ in price alone the dearer one goes, whichever came first; of equal ones the first stays."""
    assert [one.point.number for one in pareto_front(plans)] == left
