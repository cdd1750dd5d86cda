"""Every loop gives the same numbers to the last bit in Python and compiled, and is compiled where it is told to be."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator
from simulator.compiled import Loop, compile_from_now_on, compiled, interpreted_for
from simulator.engine import run
from simulator.job import load_job
from simulator.program.critical import critical_path
from simulator.program.program import Program
from simulator.remembered import forget_all
from simulator.schedules import SCHEDULES, Shape
from simulator.schedules.order_times import time_order
from simulator.simulation import simulate_job
from simulator.studies.variation import vary
from tests.differential.random_programs import programs, random_prices

NOISE = ("jitter.gpus=0.02", "jitter.compute=0.05", "jitter.collectives=0.1")


@contextmanager
def both_ways() -> Iterator[set[str]]:
    """Run each loop compiled and in Python, and compare what it returns and what it writes; yields the names of those that ran."""
    ran: set[str] = set()

    def both(self: Loop, *args: Any) -> Any:
        again = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        found, other = self.quick(*args), self.function(*again)
        for one, two in zip(flat((found, args)), flat((other, again)), strict=True):
            np.testing.assert_array_equal(one, two)
        ran.add(self.function.__qualname__)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "__call__", both)
        yield ran


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from flat(one)
    else:
        yield value


def jobs() -> None:
    changes = {
        "gpt2_124m_2gpu": NOISE,
        "llama3_8b_fsdp_8xh100": NOISE,
        "chimera_bert48_32xp100": NOISE[1:],
        "gpt2_124m_1gpu": NOISE[1:2],
    }
    for name, settings_ in changes.items():
        job = load_job(name, settings_)
        prediction = simulate_job(job)
        assert prediction.peak_memory > 0 < sum(prediction.breakdown.values())
        assert len(critical_path(prediction.program, prediction.prices, prediction.trace))
        vary(job, samples=2)


def schedules() -> None:
    for name, chunks in {"hanayo": 2, "v_half_reordered": 2, "v_min_reordered": 2, "seq1f1b": 2, "dualpipe": 1}.items():
        made, shape = SCHEDULES.get(name), Shape(4, 8, chunks_per_rank=chunks)
        placement = made.placement(shape)
        assert time_order(made.order(shape, placement), placement, transfer=0.25).makespan > 0


@settings(max_examples=25, deadline=None)
@given(program=programs(), seed=st.integers(0, 2**16), interferes=st.booleans())
def engines(program: Program, seed: int, interferes: bool) -> None:
    run(program, random_prices(program, seed, interferes))


def test_all_loops_both_ways() -> None:
    forget_all()  # what other tests left would spare the loops that made it
    with both_ways() as ran:
        for some in (jobs, schedules, engines):
            some()
    names = set()
    for module in pkgutil.walk_packages(simulator.__path__, "simulator."):
        if not module.name.endswith("__main__"):
            things = vars(importlib.import_module(module.name)).values()
            names |= {thing.function.__qualname__ for thing in things if isinstance(thing, Loop)}
    assert names == ran


def test_a_loop_is_compiled_once_it_has_met_enough() -> None:
    @compiled(cache=False)
    def total(numbers: Any) -> float:
        out = 0.0
        for number in numbers:
            out += number
        return out

    try:
        interpreted_for(25)
        assert [45.0, 45.0] == [total(np.arange(10.0)) for _ in range(2)]
        assert total._quick is None
        assert 45.0 == total(np.arange(10.0))
        assert total._quick is not None
    finally:
        compile_from_now_on()
