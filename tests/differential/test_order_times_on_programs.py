"""Every registered schedule timed from its order alone, against the engine's run of its program: the same, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.engine import run
from simulator.errors import SimulatorError
from simulator.lowering.abstract import abstract_program
from simulator.lowering.steps.ordered import ordered
from simulator.program.program import COMPUTE
from simulator.report.memory import memory_peaks
from simulator.schedules import SCHEDULES, Shape
from simulator.schedules.order_times import time_order
from simulator.studies.schedule_figures import makespan_and_bubble, schedule_figures

SHAPES = [Shape(p, m, v) for p, m in ((1, 4), (2, 4), (4, 8), (6, 24), (8, 16), (16, 16)) for v in (1, 2, 3)]
TIMES = [(1.0, 1.0, 1.0, 0.0), (1.0, 0.9, 0.7, 0.13), (0.3, 1.7, 0.0, 2.1), (0.0, 1.0, 1.0, 0.5)]


def shapes_of(name: str) -> list[Shape]:
    found = []
    for shape in SHAPES:
        try:
            SCHEDULES.get(name).check(shape)
        except SimulatorError:
            continue
        found.append(shape)
    return found


@pytest.mark.parametrize("name", list(SCHEDULES.members))
def test_an_order_takes_the_time_of_its_program(name: str) -> None:
    schedule = SCHEDULES.get(name)
    assert shapes_of(name)
    for shape in shapes_of(name):
        placement, order, pattern = ordered(schedule, shape, 1 if schedule.flush else 4)
        for forward, input_grad, weight_grad, transfer in TIMES:
            prices = {"forward": forward, "input_grad": input_grad, "weight_grad": weight_grad, "transfer": transfer}
            mine = time_order(order, placement, **prices)
            early = [False, True] if schedule.splits_backward else [False]
            peaks = (mine.peak_activations, mine.peak_activations_if_freed_at_input_grad)
            for freed in early:
                program, priced = abstract_program(placement, order, pattern, **prices, freed_at_input_grad=freed)
                trace = run(program, priced)
                assert memory_peaks(program, trace).total == pytest.approx(peaks[freed], rel=1e-12, abs=1e-12)
            rows = np.flatnonzero(program.kind == COMPUTE)
            kept = (order.pair < 0) | (order.pair > np.arange(order.size))
            assert trace.start[rows].tobytes() == mine.start[kept].tobytes()
            assert trace.end[rows].tobytes() == mine.end[kept].tobytes()
            busy = np.bincount(program.rank[rows], weights=priced.occupancy[program.item[rows]])
            assert busy == pytest.approx(mine.busy, rel=1e-12)


@pytest.mark.parametrize("name", list(SCHEDULES.members))
def test_figures_without_a_program_are_those_with_one(name: str) -> None:
    shape = shapes_of(name)[-1]
    for times in TIMES:
        whole = schedule_figures(
            name, shape.ranks, shape.microbatches, shape.chunks_per_rank,
            forward=times[0], input_grad=times[1], weight_grad=times[2], transfer=times[3],
        )  # fmt: skip
        assert makespan_and_bubble(name, shape, *times) == pytest.approx(
            (whole.makespan, whole.bubble_fraction), rel=1e-12, abs=1e-12
        )
