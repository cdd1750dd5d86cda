"""Both simulations of a run find the same run, sample by sample: accounts, interruptions, wall time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.goodput.readable import run_readable, trace_run
from simulator.goodput.run_model import RunModel
from simulator.goodput.sampled import sample_runs
from tests.goodput_models import HOUR, cause, model

STOPS = cause(9000 * HOUR, detection=90.0, nodes=1)
SLOW = cause(9000 * HOUR, effect="slow", pace=0.7, detection=2 * HOUR, nodes=1)
CASES = {
    "nothing fails": model(work=30 * HOUR, interval=HOUR, stall=60.0),
    "no checkpoint": model(cause(40000 * HOUR), work=10 * HOUR, restart=300.0),
    "synchronous": model(STOPS, work=100 * HOUR, interval=HOUR, stall=60.0, restart=600.0),
    "asynchronous": model(STOPS, work=100 * HOUR, interval=HOUR, stall=5.0, write=1200.0, drag=0.05, restart=600.0),
    "the next one waits": model(STOPS, work=50 * HOUR, interval=0.1 * HOUR, stall=5.0, write=400.0, restart=60.0),
    "memory": model(
        STOPS, cause(30000 * HOUR, nodes=4, name="rack"), work=100 * HOUR, interval=0.2 * HOUR, stall=5.0, write=900.0,
        near=20.0, far_every=5, restart=300.0,
    ),
    "weibull": model(
        cause(2000 * HOUR, shape=0.6, count=50), cause(500 * HOUR, shape=3.0, count=20, age=100 * HOUR), work=200 * HOUR,
        interval=HOUR, stall=60.0, restart=600.0,
    ),
    "slow, evicted": model(STOPS, SLOW, work=100 * HOUR, interval=HOUR, stall=60.0, restart=600.0),
    "slow, kept": model(STOPS, SLOW, work=100 * HOUR, interval=HOUR, stall=60.0, restart=600.0, evict=False),
    "slow for a while": model(
        SLOW | {"lasts": 1.0 * HOUR}, work=100 * HOUR, interval=HOUR, stall=60.0, restart=600.0
    ),
    "corrupt": model(
        STOPS, cause(30000 * HOUR, effect="corrupt", detection=3 * HOUR, nodes=1), work=100 * HOUR, interval=HOUR,
        stall=60.0, restart=600.0,
    ),
    "few spares": model(
        STOPS, work=100 * HOUR, interval=HOUR, stall=60.0, restart=600.0, spares=1, repair=6 * HOUR,
    ),
    "crews and cold spares": model(
        STOPS, work=100 * HOUR, interval=HOUR, stall=60.0, restart=600.0, spares=1, cold_spares=2, cold_start=900.0,
        repair=6 * HOUR, crews=2,
    ),
    "elastic": model(
        STOPS, SLOW, paces=(1.0, 0.9, 0.9, 0.8), work=100 * HOUR, interval=HOUR, stall=60.0, restart=600.0, spares=0,
        repair=12 * HOUR,
    ),
    "windows": model(
        STOPS, work=100 * HOUR, interval=HOUR, stall=60.0, write=300.0, restart=600.0, maintenance_every=24 * HOUR,
        maintenance_length=2 * HOUR,
    ),
    "a month": model(STOPS, SLOW, work=math.inf, horizon=200 * HOUR, interval=HOUR, stall=60.0, restart=600.0),
}  # fmt: skip


def same(run: RunModel, samples: int, seed: int = 0) -> None:
    readable, (compiled, _) = run_readable(run, samples, seed), sample_runs(run, samples, seed)
    assert readable.interruptions.tolist() == compiled.interruptions.tolist()
    assert readable.waits.tolist() == compiled.waits.tolist()
    for name in ("wall", "done", "lost"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(readable, name), rtol=1e-9, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_the_same_runs(name: str) -> None:
    same(CASES[name], 12)


@pytest.mark.parametrize("name", CASES)
def test_every_second_has_one_account(name: str) -> None:
    runs, _ = sample_runs(CASES[name], 200)
    np.testing.assert_allclose(runs.done + runs.lost.sum(axis=1), runs.wall, rtol=1e-9)
    assert (runs.lost >= -1e-6).all()


@pytest.mark.parametrize("name", ["elastic", "memory", "windows"])
def test_phases_of_a_run_follow_one_another(name: str) -> None:
    phases, (runs, _) = trace_run(CASES[name], 0, 3), sample_runs(CASES[name], 1, first=3)
    assert 0.0 == phases[0].start
    assert [a.end for a in phases[:-1]] == [b.start for b in phases[1:]]
    assert phases[-1].end == pytest.approx(runs.wall[0])


@settings(max_examples=40, deadline=None)
@example(2e7, 600.0, 0.0, 827.0, 0.0, 149.0, 2, 0, [], 600.0, False, 0).via("saves wait for a write that takes longer")
@example(2e7, 600.0, 0.0, 825.0, 0.0, 110.0, 2, 0, [], 600.0, False, 0).via("the same")
@given(
    mtbf=st.floats(2e7, 2e8),
    interval=st.floats(600, 9000),
    stall=st.floats(0, 300),
    write=st.floats(0, 2000),
    drag=st.floats(0, 0.3),
    restart=st.floats(0, 900),
    spares=st.integers(-1, 3),
    crews=st.integers(0, 2),
    paces=st.lists(st.floats(0.5, 1.0), min_size=0, max_size=2),
    lasts=st.floats(600, 20000),
    evict=st.booleans(),
    seed=st.integers(0, 2**62),
)
def test_any_run(
    mtbf: float, interval: float, stall: float, write: float, drag: float, restart: float, spares: int, crews: int,
    paces: list[float], lasts: float, evict: bool, seed: int,
) -> None:  # fmt: skip
    run = model(
        cause(mtbf, detection=30.0, nodes=1),
        cause(mtbf, effect="slow", pace=0.6, lasts=lasts, detection=3000.0, nodes=1),
        cause(2 * mtbf, effect="corrupt", detection=5000.0),
        cause(mtbf / 20, count=30, shape=0.7, nodes=2),
        paces=(1.0, *sorted(paces, reverse=True)), work=4e5, horizon=1e6, interval=interval, stall=stall, write=write, drag=drag,
        restart=restart, spares=spares, crews=crews if spares >= 0 else 0, repair=9000.0, evict=evict,
        maintenance_every=1e5, maintenance_length=4000.0,
    )  # fmt: skip
    same(run, 2, seed)
