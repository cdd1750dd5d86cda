"""Times of an order from the order alone: what the engine says of its program, to the last bit, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.errors import DeadlockError, PlanError, ProgramError
from simulator.schedules import PipelineOrder, Placement, Shape
from simulator.schedules.order_times import time_order

TWO = Placement.linear(Shape(2, 2))


def test_a_chain_by_hand() -> None:
    order = PipelineOrder.parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")
    times = time_order(order, TWO, forward=1.0, input_grad=1.0, weight_grad=1.0, transfer=0.5)
    assert [0.0, 1.0, 5.0, 8.0] == times.start[:4].tolist()
    assert [1.5, 2.5, 4.5, 5.5] == times.start[4:].tolist()
    assert (10.0, [6.0, 6.0]) == (times.makespan, times.busy.tolist())
    assert ([0.0, 1.5], [10.0, 7.5]) == (times.first_start.tolist(), times.last_end.tolist())
    assert [2.0, 1.0] == times.peak_activations.tolist()
    assert 1 - 12 / 20 == times.bubble_fraction


def test_a_split_backward_holds_until_w_or_only_until_i() -> None:
    order = PipelineOrder.parse("0F0,0I0,0F1,0I1,0W0,0W1")
    times = time_order(order, Placement.linear(Shape(1, 2)))
    assert ([2.0], [1.0]) == (
        times.peak_activations.tolist(),
        times.peak_activations_if_freed_at_input_grad.tolist(),
    )


def test_a_fused_pair_waits_for_both_and_takes_the_sum() -> None:
    order = PipelineOrder.parse("0F0,(0F1;0B0),0B1\n1F0,1B0,1F1,1B1")
    times = time_order(order, TWO)
    assert times.start[1] == times.start[2] == 4.0
    assert times.end[1] == times.end[2] == 7.0


def test_ranks_may_take_different_times() -> None:
    order = PipelineOrder.parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")
    times = time_order(order, TWO, forward=[1.0, 3.0], input_grad=[0.5, 1.0], weight_grad=0.0)
    assert [3.0, 8.0] == times.busy.tolist()


def test_what_takes_no_time_holds_nothing() -> None:
    order = PipelineOrder.parse("0F0,0F1,0B0,0B1")
    placement = Placement.linear(Shape(1, 2))
    nothing = time_order(order, placement, forward=0.0, input_grad=0.0, weight_grad=0.0)
    assert (0.0, 0.0, [0.0]) == (nothing.makespan, nothing.bubble_fraction, nothing.peak_activations.tolist())
    assert [2.0] == time_order(order, placement, forward=0.0).peak_activations.tolist()


def test_a_deadlock_is_named() -> None:
    order = PipelineOrder.parse("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0")
    with pytest.raises(DeadlockError, match=r"rank 0 waits in 0B0 for 1B0 of rank 1"):
        time_order(order, TWO)


@pytest.mark.parametrize(
    ("text", "placement", "message"),
    [
        ("0F0,0B0\n2F0,2B0", TWO, "chunk lies in 0..1"),
        ("0F0,0B0\n1F7,1B7", TWO, "microbatch lies in 0..1"),
        ("0F0,0B0", TWO, "1 ranks, the placement 2"),
        ("0F0,0B0\n1F1+2,1B0", TWO, "ends at microbatch 1"),
    ],
)
def test_an_order_that_does_not_fit_its_placement_is_refused(text: str, placement: Placement, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        time_order(PipelineOrder.parse(text), placement)


@pytest.mark.parametrize("kind", [-1, 4])
def test_an_action_of_no_known_kind_is_refused(kind: int) -> None:
    order = PipelineOrder.parse("0F0,0B0\n1F0,1B0")
    kinds = order.kind.copy()
    kinds[1] = kind
    with pytest.raises(ProgramError, match=r"kind lies in 0..3"):
        time_order(replace(order, kind=kinds), TWO)


@pytest.mark.parametrize("name", ["forward", "input_grad", "weight_grad", "transfer"])
@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan])
def test_times_are_finite_and_not_negative(name: str, value: float) -> None:
    order = PipelineOrder.parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")
    with pytest.raises(PlanError, match=f"the {name} time"):
        time_order(order, TWO, **{name: value})
    if name != "transfer":
        with pytest.raises(ProgramError, match=r"shape \(3,\) for 2 ranks"):
            time_order(order, TWO, **{name: [1.0, 1.0, 1.0]})
