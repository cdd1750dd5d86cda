"""The slowest of many GPUs sets the pace of products and attention."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.hardware.cluster import load_cluster
from simulator.hardware.gpu_spread import load_gpu_spread, longer_by
from simulator.job import load_job
from simulator.simulation import simulate


@pytest.mark.parametrize("gpus", [2, 8, 64, 1024])
def test_the_slowest_is_the_largest_of_that_many_normal_numbers(gpus: int) -> None:
    drawn = np.random.default_rng(3).standard_normal((4000, gpus)).max(axis=1).mean()
    assert longer_by(1.0, gpus) == pytest.approx(drawn, rel=0.06)


def test_one_gpu_waits_for_nobody() -> None:
    assert 0.0 == longer_by(0.3, 1) == load_cluster("dgx_a100", 1).slowest_gpu
    assert 0.0 == longer_by(0.0, 4096)


def test_a_cluster_has_the_spread_of_the_data_file_unless_its_own_says_otherwise() -> None:
    assert load_gpu_spread().sigma == load_cluster("selene").gpu_spread > 0


def step(*settings: str) -> tuple[float, float]:
    """Step time [s] and the part of it that products and attention take."""
    job = load_job("gpt3_175b", settings)
    found = simulate(job.workload, job.plan, job.cluster)
    program, prices = found.program, found.prices
    clocked = [q for q, which in enumerate(prices.classes) if which.kind in ("gemm", "attention")]
    first = program.rank == 0
    return found.step_time, float(prices.class_share[program.item[first]][:, clocked].sum())


def test_a_job_may_say_how_its_gpus_differ_and_only_what_the_clock_drives_gets_longer() -> None:
    equal, clocked = step("cluster.gpu_spread=0")
    spread, longer = step("cluster.gpu_spread=0.02")
    assert longer / clocked == pytest.approx(1 + longer_by(0.02, 1024))
    assert 0.5 * (longer - clocked) < spread - equal < 1.6 * (longer - clocked)


def test_described_noise_of_gpus_takes_the_place_of_the_expected_slowest() -> None:
    job = load_job("gpt3_175b", ("jitter.gpus=0.02",))
    assert 0.0 == job.cluster.slowest_gpu
    assert any("gpu_spread = 0" in text for text in job.assumptions)
