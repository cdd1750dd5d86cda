"""Every registered schedule that flushes, lowered in abstract time, runs alike on both engines and on the reference."""

from __future__ import annotations

import pytest
from reference import evaluate

from simulator.engine import run
from simulator.errors import SimulatorError
from simulator.lowering.abstract import abstract_program
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.registry import Family
from simulator.schedules.base import Shape

SCHEDULES = Family("schedule", "simulator.schedules", "Schedule")
SHAPES = [Shape(ranks=2, microbatches=4, chunks_per_rank=chunks) for chunks in (1, 2)] + [
    Shape(ranks=4, microbatches=8, chunks_per_rank=chunks) for chunks in (1, 2)
]


def lowered(name: str) -> list[tuple[Program, Prices]]:
    """Return the programs of a schedule for the shapes that it accepts."""
    schedule, found = SCHEDULES.get(name), []
    for shape in SHAPES:
        try:
            schedule.check(shape)
        except SimulatorError:
            continue
        placement = schedule.placement(shape)
        order = schedule.order(shape, placement)
        found.append(
            abstract_program(placement, order, shape, forward=1.0, input_grad=0.9, weight_grad=0.7, transfer=0.13)
        )
    return found


@pytest.mark.parametrize("name", [name for name, s in SCHEDULES.members.items() if getattr(s, "flush", True)])
def test_engines_agree_on_a_schedule(name: str) -> None:
    programs = lowered(name)
    assert programs
    for program, prices in programs:
        expected, actual = run(program, prices, "simpy"), run(program, prices, "compiled")
        assert expected.start.tobytes() == actual.start.tobytes()
        assert expected.end.tobytes() == actual.end.tobytes()
    program, prices = programs[0]
    assert evaluate(program, prices).makespan == pytest.approx(run(program, prices).makespan, rel=1e-12)
