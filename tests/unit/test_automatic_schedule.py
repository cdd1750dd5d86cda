"""Automatic schedules: always valid, always within the memory limit, and the proven optimum where it can be proven."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import PlanError
from simulator.schedules.base import Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_check import check_order
from simulator.studies.automatic_schedule import automatic_schedule, lower_bound
from simulator.studies.schedule_figures import schedule_figures

CASES = [
    # ranks, microbatches, forward, input gradient, weight gradient, transfer, memory limit
    (4, 8, 1, 1, 1, 0, 2),
    (4, 8, 1, 1, 1, 0, 3),
    (3, 6, 2, 3, 1, 1, 2),
    (4, 6, 3, 4, 2, 1, 3),
    (4, 8, 10, 13, 7, 2, 4),
    (3, 8, 10, 16, 4, 3, 3),
    (2, 8, 4, 5, 3, 2, 2),
    (5, 6, 2, 3, 2, 1, 4),
]


def optimum(p: int, m: int, f: Any, i: Any, w: Any, t: int, limit: int) -> float:
    """Return the least makespan there is, proven by constraint programming.

    Microbatches are alike, so each rank may be taken to run each kind of action in their order.
    """
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    model = cp_model.CpModel()
    times = {kind: np.broadcast_to(each, p).tolist() for kind, each in zip("FIW", (f, i, w), strict=True)}
    horizon = m * sum(sum(each) for each in times.values()) + 2 * p * m * t
    start = {
        (kind, r, b): model.new_int_var(0, horizon, f"{kind}{r}.{b}")
        for kind in "FIW"
        for r in range(p)
        for b in range(m)
    }
    end = model.new_int_var(0, horizon, "end")
    for r in range(p):
        runs, holds = [], []
        for b in range(m):
            for kind, before in zip("FIW", ("", "F", "I"), strict=True):
                at = start[kind, r, b]
                runs.append(model.new_fixed_size_interval_var(at, times[kind][r], ""))
                if before:
                    model.add(at >= start[before, r, b] + times[before][r])
                if b:
                    model.add(at >= start[kind, r, b - 1] + times[kind][r])
            span = model.new_int_var(0, horizon, "")
            holds.append(model.new_interval_var(start["F", r, b], span, start["W", r, b] + times["W"][r], ""))
            model.add(end >= start["W", r, b] + times["W"][r])
            if r:
                model.add(start["F", r, b] >= start["F", r - 1, b] + times["F"][r - 1] + t)
                model.add(start["I", r - 1, b] >= start["I", r, b] + times["I"][r] + t)
        model.add_no_overlap(runs)
        model.add_cumulative(holds, [1] * m, limit)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = 20
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    assert cp_model.OPTIMAL == status, "the optimum was not proven in time"
    return float(solver.objective_value)


@pytest.mark.parametrize("case", [*CASES[::2], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1::2])])
def test_small_shapes_reach_the_proven_optimum(case: tuple[int, ...]) -> None:
    p, m, f, i, w, t, limit = case
    found = automatic_schedule(Shape(p, m), f, i, w, t, limit)
    best = optimum(p, m, f, i, w, t, limit)
    assert lower_bound(Shape(p, m), f, i, w, t, limit) <= best
    assert found.makespan == pytest.approx(best, rel=0.01)


def test_uneven_stages_come_close_to_the_proven_optimum() -> None:
    f, i, w = [2, 2, 2, 3], [2, 3, 2, 4], [1, 2, 2, 3]
    found = automatic_schedule(Shape(4, 6), f, i, w, 1, 4)
    best = optimum(4, 6, f, i, w, 1, 4)
    assert found.lower_bound <= best <= found.makespan <= 1.03 * best


@settings(max_examples=8, deadline=None)
@given(
    ranks=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    chunks=st.sampled_from([1, 1, 2]),
    times=st.tuples(*[st.floats(0.1, 3.0)] * 3),
    transfer=st.just(0.0) | st.floats(1e-9, 2.0),
    limit=st.integers(1, 9),
)
def test_every_order_is_valid_and_stays_within_its_limit(
    ranks: int, microbatches: int, chunks: int, times: tuple[float, ...], transfer: float, limit: int
) -> None:
    shape = Shape(ranks, microbatches, chunks)
    found = automatic_schedule(shape, *times, transfer, limit)
    check_order(found.order, found.placement, microbatches)
    assert found.peak_activations.max() <= limit + 1e-9
    assert found.lower_bound <= found.makespan * (1 + 1e-9)
    assert PipelineOrder.parse(found.order.to_text()) == found.order


@pytest.mark.parametrize("transfer", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", ["zb_h1", "zb_h2"])
def test_it_is_never_worse_than_the_zero_bubble_schedules_with_the_same_memory(name: str, transfer: float) -> None:
    known = schedule_figures(name, 8, 24, forward=1.0, input_grad=1.2, weight_grad=0.8, transfer=transfer)
    found = automatic_schedule(Shape(8, 24), 1.0, 1.2, 0.8, transfer, known.peak_activations.max())
    assert found.makespan <= known.makespan * (1 + 1e-9)


def test_more_memory_never_costs_time_and_less_memory_does() -> None:
    spans = [automatic_schedule(Shape(4, 12), 1.0, 1.0, 1.0, 0.5, limit).makespan for limit in (1, 2, 4, 7, 12)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > 2 * spans[-1]
    assert 12 * (4 * 2 + 2 * 3 * 0.5 + 1) == spans[0], "one at a time: each goes down, up, and ends with W on rank 0"


def test_large_shapes_are_close_to_their_bound() -> None:
    assert automatic_schedule(Shape(64, 1024), transfer=0.1, memory_limit=64).gap < 0.01


def test_both_engines_time_it_alike() -> None:
    uneven = ([1.0, 1.0, 2.0], [1.0, 1.5, 2.0], [0.5, 1.0, 1.0])
    spans = {
        engine: automatic_schedule(Shape(3, 5), *uneven, 0.2, 3, engine).makespan for engine in ("compiled", "simpy")
    }
    assert spans["compiled"] == spans["simpy"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"memory_limit": 0.5}, "at least one microbatch"),
        ({"forward": -1.0}, "must be 0 or from 1e-30 to 1e30"),
        ({"forward": [1.0, 2.0]}, "one per rank"),
        ({"transfer": float("nan")}, "must be 0 or from 1e-30 to 1e30"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        automatic_schedule(Shape(4, 8), **arguments)


@pytest.mark.parametrize(
    ("shape", "times"),
    [
        (Shape(8, 24), (18.522, 18.086, 9.337, 0.601)),
        (Shape(16, 48), (11.347, 11.248, 8.132, 0.377)),
    ],
)
def test_under_the_memory_of_1f1b_the_search_finds_no_more_than_zb_h1(shape: Shape, times: tuple[float, ...]) -> None:
    """The times [ms] of the 1.5B and 14.6B runs of the Zero Bubble paper (its authors' script): what ran there as ZB-1p."""
    forward, inputs, weights, hop = times
    found = automatic_schedule(
        shape, forward=forward, input_grad=inputs, weight_grad=weights, transfer=hop, memory_limit=shape.ranks
    )
    by_hand = schedule_figures(
        "zb_h1", shape.ranks, shape.microbatches, forward=forward, input_grad=inputs, weight_grad=weights, transfer=hop
    )
    assert found.makespan == pytest.approx(by_hand.makespan, rel=2e-3)
