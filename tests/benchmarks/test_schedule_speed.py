"""How long an order of 64 ranks and 1,024 microbatches takes to make and to evaluate, for every schedule (`pytest -m benchmark -s`).

`figures` is the evaluation: from an order and times to makespan, bubble and both activation peaks, nothing kept from before.  Beside
it stands what an engine takes for the whole `program` of the order, transfers as rows of their own, without peaks.  Figures should take
less than the engine's run and making an order less than twenty of it; neither is judged, for caches and clocks differ between machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from simulator.engine import run
from simulator.errors import PlanError
from simulator.lowering.abstract import abstract_program
from simulator.lowering.steps.pattern import Pattern
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order_times import time_order


def fitting(schedule: Schedule) -> Shape:
    for chunks in (1, 2):
        shape = Shape(64, 1024, chunks)
        try:
            schedule.check(shape)
        except PlanError:
            continue
        return shape
    raise AssertionError(schedule.name)


def seconds(call: Callable[[], object], times: int) -> float:
    """Return the least processor time of several calls, the first of which compiles."""
    best = np.inf
    for _ in range(times):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return float(best)


@pytest.mark.benchmark
def test_orders_of_64_ranks_and_1024_microbatches() -> None:
    table = []
    for schedule in SCHEDULES:
        shape = fitting(schedule)
        placement = schedule.placement(shape)

        def make(schedule: Schedule = schedule, shape: Shape = shape) -> object:
            placed = schedule.placement(shape)
            return schedule.order(shape, placed) if schedule.flush else schedule.steady_order(shape, 1)

        took = seconds(make, 3)
        order = make()
        program, prices = abstract_program(
            placement, order, Pattern(order, placement), forward=1.0, input_grad=1.0, weight_grad=1.0, transfer=0.1
        )
        first = seconds(lambda p=program, q=prices: run(p, q), 5)
        figures = seconds(lambda o=order, p=placement: time_order(o, p, transfer=0.1), 9)
        assert time_order(order, placement, transfer=0.1).makespan == run(program, prices).makespan
        table.append((schedule.name, shape.chunks_per_rank, order.size, took, figures, first))
    print(f"\n{'':24}{'chunks':>8}{'actions':>10}{'order ms':>10}{'figures ms':>12}{'program ms':>12}{'ratio':>8}")
    for name, chunks, actions, took, figures, first in table:
        print(
            f"{name:24}{chunks:>8}{actions:>10}{took * 1e3:>10.1f}{figures * 1e3:>12.1f}{first * 1e3:>12.1f}"
            f"{first / figures:>8.1f}"
        )
