"""The two engines say the same of every program; a plain-Python reference agrees; planted faults are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import programs, random_prices, random_program
from reference import FLUID_FAULTS, PLAIN_FAULTS, evaluate

from simulator.engine import run
from simulator.errors import DeadlockError, ProgramError, UnknownNameError
from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.spec import verify
from simulator.program.trace import Trace

SEEDS = st.integers(0, 2**32 - 1)
SAMPLE = [(1 + seed % 4, 1 + seed % 3, 18, seed) for seed in range(24)]


def differs(one: Trace, other: Trace, tolerance: float = 1e-9) -> bool:
    """The comparison of the merge gate: any start or end apart by more than the tolerance, relative to the makespan."""
    scale = max(one.makespan, other.makespan, 1e-300)
    apart = max(np.abs(one.start - other.start).max(initial=0.0), np.abs(one.end - other.end).max(initial=0.0))
    return bool(apart > tolerance * scale)


@settings(max_examples=200, deadline=None)
@given(program=programs(), seed=SEEDS)
def test_engines_agree_to_the_last_bit_without_interference(program: Program, seed: int) -> None:
    prices = random_prices(program, seed)
    expected, actual = run(program, prices, "simpy"), run(program, prices, "compiled")
    assert expected.start.tobytes() == actual.start.tobytes()
    assert expected.end.tobytes() == actual.end.tobytes()


@settings(max_examples=150, deadline=None)
@given(program=programs(), seed=SEEDS)
def test_engines_agree_with_interference(program: Program, seed: int) -> None:
    prices = random_prices(program, seed, interferes=True)
    expected, actual = run(program, prices, "simpy"), run(program, prices, "compiled")
    assert prices.interferes
    assert not differs(expected, actual)


@pytest.mark.parametrize("interferes", [False, True])
def test_the_reference_agrees_with_both_engines(interferes: bool) -> None:
    for shape in SAMPLE:
        program = random_program(*shape)
        verify(program)
        prices = random_prices(program, shape[-1], interferes)
        expected = evaluate(program, prices)
        for engine in ("simpy", "compiled"):
            assert not differs(expected, run(program, prices, engine)), (shape, engine)


@pytest.mark.parametrize("fault", PLAIN_FAULTS)
def test_the_comparison_finds_a_planted_fault(fault: str) -> None:
    cases = [random_program(*shape) for shape in SAMPLE]
    found = [
        differs(run(program, random_prices(program, seed)), evaluate(program, random_prices(program, seed), fault))
        for seed, program in enumerate(cases)
    ]
    assert sum(found) >= 3


@pytest.mark.parametrize("fault", FLUID_FAULTS)
def test_the_comparison_finds_a_planted_fault_of_interference(fault: str) -> None:
    found = []
    for seed, shape in enumerate(SAMPLE):
        program = random_program(*shape)
        prices = random_prices(program, seed, interferes=True)
        found.append(differs(run(program, prices), evaluate(program, prices, fault)))
    assert sum(found) >= 3


def two_ranks_overlapping() -> Program:
    """Compute of 2 s on rank 0, and a transfer from rank 0 to rank 1 that starts with it."""
    build = ProgramBuilder()
    for _ in range(2):
        build.add_stream(build.add_rank())
    out, into = build.add_stream(0, "pp>1"), build.add_stream(1, "pp<0")
    build.add_row(build.add_item(plain_segment("layer")), 0)
    build.add_row(build.add_item(transfer_link("act", 0, 1)), (out, into))
    return build.build()


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_interference_by_hand(engine: str) -> None:
    """Compute takes 1.5 times as long while the transfer runs, the transfer 2 times as long while compute runs."""
    program = two_ranks_overlapping()
    plain = Prices.plain(np.array([2.0, 0.5]), np.zeros(2))
    share, slowdown = np.zeros((2, 6)), np.ones((6, 6))
    share[0, 0], share[1, 4] = 1.0, 1.0
    slowdown[0, 4], slowdown[4, 0] = 1.5, 2.0
    prices = replace(plain, share=share, slowdown=slowdown)
    trace = run(program, prices, engine)
    # 0..1 s: the transfer, slowed to 1 s; compute does 1/1.5 s of its 2 s; then 4/3 s alone.
    assert [pytest.approx(7 / 3), pytest.approx(1.0)] == trace.end.tolist()


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("interferes", [False, True])
def test_a_deadlock_names_the_ring(engine: str, interferes: bool) -> None:
    build = ProgramBuilder()
    for _ in range(5):
        build.add_stream(build.add_rank(), "dp")
    bucket = build.add_item(collective_link("bucket 3", "all_reduce", [0], account="dp"))
    layer = build.add_item(collective_link("layer 7", "all_gather", [4], account="dp"))
    build.add_row(bucket, 0, after=[1])
    build.add_row(layer, 4, after=[0])
    program = build.build()
    with pytest.raises(DeadlockError) as caught:
        run(program, random_prices(program, 0, interferes), engine)
    assert (
        'Rank 0 waits in all_reduce "bucket 3" (dp, row 0) for rank 4; '
        'rank 4 waits in all_gather "layer 7" (dp, row 1) for rank 0' in str(caught.value)
    )


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_a_program_without_rows_takes_no_time(engine: str) -> None:
    assert run(ProgramBuilder().build(), Prices.plain(np.zeros(0), np.zeros(0)), engine).makespan == 0.0


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'compiled'"):
        run(two_ranks_overlapping(), Prices.plain(np.ones(2), np.zeros(2)), "compile")


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("times", [np.ones(1), np.array([1.0, np.nan]), np.array([1.0, -1.0])])
def test_prices_that_do_not_fit_are_refused(engine: str, times: np.ndarray) -> None:
    with pytest.raises(ProgramError, match="occupancy"):
        run(two_ranks_overlapping(), Prices.plain(times, np.zeros(len(times))), engine)
