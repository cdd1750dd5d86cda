"""What a run's simulation must give where the answer is known without it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.goodput.checkpoints import (
    CheckpointCost,
    daly_interval,
    daly_makespan,
    exact_interval,
    young_interval,
)
from simulator.goodput.interval import best_interval
from simulator.goodput.run_model import ACCOUNTS
from simulator.goodput.sampled import sample_runs
from tests.goodput_models import HOUR, cause, model

COUNT = 1000
"""Components of `cause`."""


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean, and three standard errors of it."""
    return float(values.mean()), 3.0 * float(values.std() / math.sqrt(len(values)))


def test_without_failures_a_run_is_its_steps() -> None:
    runs, _ = sample_runs(model(work=1234.5 * HOUR), 3)
    assert [1234.5 * HOUR] * 3 == runs.wall.tolist()
    assert [1.0] * 3 == runs.goodput.tolist()


def test_without_failures_checkpoints_add_their_time() -> None:
    runs, _ = sample_runs(model(work=100 * HOUR, interval=HOUR, stall=60.0), 1)
    assert runs.wall[0] == pytest.approx(100 * HOUR + 100 * 60.0)


@pytest.mark.parametrize("hours", [2.0, 8.0, 40.0])
@pytest.mark.parametrize("interval", [0.3, 1.0, 3.0])
def test_daly(hours: float, interval: float) -> None:
    """Constant rates, training stands while it saves: Daly's exact expected makespan (full model), within sampling error."""
    stall, down = 120.0, 900.0
    run = model(
        cause(COUNT * hours * HOUR, detection=300.0),
        work=60 * HOUR,
        interval=interval * HOUR,
        stall=stall,
        restart=600.0,
    )
    runs, _ = sample_runs(run, 6000)
    mean, error = mean_and_error(runs.wall)
    assert daly_makespan(60 * HOUR, interval * HOUR, stall, down, hours * HOUR) == pytest.approx(mean, abs=error)
    assert error < 0.03 * mean


def test_failures_come_at_their_rate() -> None:
    run = model(cause(COUNT * 5 * HOUR), work=math.inf, horizon=1000 * HOUR, interval=HOUR, stall=60.0, restart=60.0)
    mean, error = mean_and_error(sample_runs(run, 500)[0].interruptions[:, 0].astype(float))
    assert 200.0 == pytest.approx(mean, abs=error)


@pytest.mark.parametrize(("stall", "hours"), [(60.0, 3.0), (10.0, 24.0), (300.0, 6.0)])
def test_the_best_interval_is_within_five_per_cent(stall: float, hours: float) -> None:
    run = model(cause(COUNT * hours * HOUR), work=1000 * HOUR, interval=math.inf, stall=stall, restart=300.0)
    cost = CheckpointCost(bytes=0.0, stall=stall, write=0.0, near=-1.0, load=0.0)
    best = best_interval(run, cost, 1.0)
    assert best is not None
    assert exact_interval(stall, hours * HOUR) == pytest.approx(best.simulated, rel=0.05)


def test_the_formulas_are_of_the_time_for_which_training_stands() -> None:
    """A copy takes a second, until it is safe five minutes pass beside training: Young and Daly ask for the same interval."""
    run = model(cause(COUNT * 24 * HOUR), work=1000 * HOUR, interval=math.inf, stall=1.0, restart=300.0)
    best = best_interval(run, CheckpointCost(bytes=0.0, stall=1.0, write=300.0, near=-1.0, load=0.0), 1.0)
    assert best is not None
    assert best.young == pytest.approx(best.daly, rel=0.05)


def test_the_exact_interval_is_the_least_of_the_exact_makespan() -> None:
    best = exact_interval(120.0, 4 * HOUR)
    at = daly_makespan(HOUR, best, 120.0, 600.0, 4 * HOUR)
    assert at < min(daly_makespan(HOUR, best * f, 120.0, 600.0, 4 * HOUR) for f in (0.98, 1.02))
    assert daly_interval(120.0, 4 * HOUR) == pytest.approx(best, rel=0.003)
    assert best < young_interval(120.0, 4 * HOUR) < 1.1 * best


@pytest.mark.parametrize("shape", [0.6, 1.0, 2.5])
def test_lives_follow_weibull(shape: float) -> None:
    """Failures up to a time, of components that are replaced, against lives drawn one after another."""
    count, mtbf, span = 40, 50 * HOUR, 120 * HOUR
    run = model(cause(mtbf, shape=shape, count=count), work=math.inf, horizon=span, interval=HOUR)
    mean, error = mean_and_error(sample_runs(run, 2000)[0].interruptions[:, 0].astype(float))
    lives = mtbf / math.gamma(1 + 1 / shape) * np.random.default_rng(1).weibull(shape, (40_000, 40))
    expected = count * float((np.cumsum(lives, axis=1) <= span).sum(axis=1).mean())
    assert expected == pytest.approx(mean, abs=error + 0.01 * expected)


def test_old_components_fail_as_their_age_says() -> None:
    """P(fails within t | lived to a) = 1 - exp((a / scale)^k - ((a + t) / scale)^k)."""
    shape, age, span = 3.0, 80 * HOUR, 10 * HOUR
    run = model(cause(100 * HOUR, shape=shape, count=1, age=age), work=math.inf, horizon=span, interval=HOUR)
    scale = 100 * HOUR / math.gamma(1 + 1 / shape)
    expected = 1 - math.exp((age / scale) ** shape - ((age + span) / scale) ** shape)
    found = (sample_runs(run, 20_000)[0].interruptions[:, 0] > 0).mean()
    assert expected == pytest.approx(found, abs=0.01)


@pytest.mark.parametrize("spares", [1, 3, 6])
def test_spares_run_out_as_in_a_queue(spares: int) -> None:
    """Machines in repair are an M/M/infinity queue (failures come whether or not the job waits), so a failure finds none left
    with the chance that a Poisson number of mean rate x repair is at least the number of spares."""
    rate, repair = 1.0 / (10 * HOUR), 30 * HOUR
    run = model(
        cause(COUNT / rate, nodes=1), work=math.inf, horizon=2e4 * HOUR, interval=HOUR, spares=spares, repair=repair
    )
    runs, _ = sample_runs(run, 60)
    load = rate * repair
    expected = 1.0 - sum(math.exp(-load) * load**k / math.factorial(k) for k in range(spares))
    assert expected == pytest.approx(runs.waits.sum() / runs.interruptions.sum(), rel=0.03)


def test_one_crew_repairs_one_after_another() -> None:
    """M/M/1: a failure finds s or more machines in repair with the chance load^s."""
    rate, repair, spares = 1.0 / (10 * HOUR), 5 * HOUR, 2
    run = model(
        cause(COUNT / rate, nodes=1), work=math.inf, horizon=2e4 * HOUR, interval=HOUR, spares=spares, repair=repair,
        crews=1,
    )  # fmt: skip
    runs, _ = sample_runs(run, 60)
    assert (rate * repair) ** spares == pytest.approx(runs.waits.sum() / runs.interruptions.sum(), rel=0.04)


def test_a_slow_component_costs_its_pace_until_it_is_found() -> None:
    """Each costs (1 - pace) of the time until it is found, a checkpoint and a restart."""
    slow = cause(COUNT * 200 * HOUR, effect="slow", pace=0.75, detection=4 * HOUR)
    run = model(slow, work=5000 * HOUR, interval=HOUR, stall=30.0, restart=300.0)
    runs, _ = sample_runs(run, 400)
    lost = dict(zip(ACCOUNTS, runs.lost.mean(axis=0), strict=True))
    found = runs.interruptions[:, 0].mean()
    assert 0.25 * 4 * HOUR * found == pytest.approx(lost["slow"], rel=0.03)
    assert 300.0 * found == pytest.approx(lost["restart"], rel=0.01)
    assert 0.0 == lost["rework"] == lost["detection"]


def test_wrong_numbers_cost_all_since_they_began() -> None:
    """Work is done again from the last checkpoint before: the delay, and half an interval on average."""
    delay = 6 * HOUR
    wrong = cause(COUNT * 300 * HOUR, effect="corrupt", detection=delay)
    runs, _ = sample_runs(model(wrong, work=3000 * HOUR, interval=HOUR, stall=0.0), 400)
    each = runs.lost[:, ACCOUNTS.index("rework")].sum() / runs.interruptions[:, 0].sum()
    assert delay + 0.5 * HOUR == pytest.approx(each, rel=0.03)


def test_near_copies_spare_rework() -> None:
    """With copies at a neighbour single failures go back minutes, failures of two machines to the file system."""
    single, double = cause(COUNT * 10 * HOUR, nodes=1), cause(COUNT * 10 * HOUR, nodes=2)
    plan = {"work": 2000 * HOUR, "interval": 0.1 * HOUR, "stall": 0.0, "near": 1.0, "far_every": 20, "write": 60.0}

    def rework(*causes: dict[str, object]) -> float:
        runs, _ = sample_runs(model(*causes, **plan), 40)
        return float(runs.lost[:, ACCOUNTS.index("rework")].sum() / runs.interruptions.sum())

    assert 0.05 * HOUR == pytest.approx(rework(single), rel=0.05)
    assert 0.9 * HOUR < rework(double) < 1.05 * HOUR


def test_a_run_is_the_same_however_many_are_asked_for() -> None:
    run = model(cause(COUNT * 5 * HOUR), work=100 * HOUR, interval=HOUR, stall=60.0, restart=60.0)
    many, _ = sample_runs(run, 45, seed=7)
    few, _ = sample_runs(run, 3, seed=7, first=40)
    assert many.wall[40:43].tolist() == few.wall.tolist()
    assert sample_runs(run, 45, seed=8)[0].wall.tolist() != many.wall.tolist()
