"""Every registered schedule, lowered in abstract time, runs alike on both engines and on the reference."""

from __future__ import annotations

import pytest
from reference import evaluate

from simulator.engine import run
from simulator.errors import SimulatorError
from simulator.lowering.abstract import abstract_program
from simulator.lowering.steps.ordered import ordered
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.registry import Family
from simulator.schedules.base import Shape

SCHEDULES = Family("schedule", "simulator.schedules", "Schedule")
SHAPES = [Shape(ranks=2, microbatches=4, chunks_per_rank=chunks) for chunks in (1, 2)] + [
    Shape(ranks=4, microbatches=8, chunks_per_rank=chunks) for chunks in (1, 2)
]
SHAPES += [Shape(ranks=8, microbatches=16), Shape(ranks=16, microbatches=16)]


def lowered(name: str) -> list[tuple[Program, Prices]]:
    """Return the programs of a schedule for the shapes that it accepts."""
    schedule, found = SCHEDULES.get(name), []
    for shape in SHAPES:
        try:
            columns = ordered(schedule, shape, 1 if schedule.flush else 4)
        except SimulatorError:
            continue
        found.append(abstract_program(*columns, forward=1.0, input_grad=0.9, weight_grad=0.7, transfer=0.13))
    return found


@pytest.mark.parametrize("name", list(SCHEDULES.members))
def test_a_schedule_obeys_the_rules_and_runs_alike(name: str) -> None:
    programs = lowered(name)
    assert programs
    for program, prices in programs:
        verify(program)
        expected, actual = run(program, prices, "simpy"), run(program, prices, "compiled")
        assert expected.start.tobytes() == actual.start.tobytes()
        assert expected.end.tobytes() == actual.end.tobytes()
    program, prices = programs[0]
    text = render_text(program)
    assert text == render_text(parse_text(text))
    assert evaluate(program, prices).makespan == pytest.approx(run(program, prices).makespan, rel=1e-12)
