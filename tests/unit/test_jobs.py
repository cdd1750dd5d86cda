"""Every job file of the product loads, runs and gives figures that belong together."""

from __future__ import annotations

import math

import pytest

from simulator.job import load_job
from simulator.report.prediction import Prediction
from simulator.simulation import simulate_job
from simulator.specs import names

JOBS = names("jobs")
PUBLISHED = [name for name in JOBS if name.startswith("korthikanti_")]


def predict(name: str, *settings: str) -> Prediction:
    return simulate_job(load_job(name, settings))


def test_the_jobs_a_user_is_promised_are_there() -> None:
    promised = {
        "gpt2_124m_1gpu",
        "gpt2_124m_2gpu",
        "gpt3_13b_2xdgx_a100",
        "gpt3_175b",
        "llama3_405b_16384xh100",
        "llama3_8b_fsdp_8xh100",
        "llama_7b_4x4090",
        "ernie_titan_1920xascend",
        "glam_1024xtpuv4",
        "gopher_4096xtpuv3",
        "jurassic_760xa100",
        "m6_10t_512xv100",
        "pangu_alpha_2048xascend",
        "yuan_2128xa100",
    }
    assert set() == promised - set(JOBS)
    assert all(load_job(name).notes for name in promised)
    assert 8 == len(PUBLISHED)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_runs(name: str) -> None:
    job = load_job(name)
    prediction = simulate_job(job)

    assert name == job.name
    assert job.cluster.world_size == prediction.world_size
    assert 0 < prediction.low < prediction.step_time < prediction.high
    assert 0 < prediction.mfu < 1
    assert math.isclose(prediction.step_time, sum(prediction.breakdown.values()), rel_tol=1e-9)


@pytest.mark.parametrize(
    ("alias", "name"), [("llama3_8b_fsdp", "llama3_8b_fsdp_8xh100"), ("llama3_405b", "llama3_405b_16384xh100")]
)
def test_short_names_find_the_same_job(alias: str, name: str) -> None:
    assert load_job(name) == load_job(alias)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_steps_lie_in_the_band_and_near_the_measurement(name: str) -> None:
    measured = load_job(name).measured_step_time
    prediction = predict(name)

    assert measured is not None
    assert prediction.low < measured < prediction.high
    assert abs(prediction.step_time / measured - 1) < 0.10


@pytest.mark.parametrize("size", ["22b", "175b", "530b", "1t"])
def test_selective_recompute_with_sequence_parallelism_is_faster_than_full_and_still_fits(size: str) -> None:
    full, selective = predict(f"korthikanti_{size}_full"), predict(f"korthikanti_{size}_selective")

    assert selective.step_time < full.step_time
    assert selective.peak_memory > full.peak_memory
    assert full.fits
    assert selective.fits


def test_seven_billion_parameters_do_not_fit_four_24_gb_gpus_and_the_notes_say_what_helps() -> None:
    assert not predict("llama_7b_4x4090").fits
    assert predict("llama_7b_4x4090", "workload.model=llama3_2_3b").fits
    assert predict("llama_7b_4x4090", "workload.optimizer=sgd", "workload.sequence_length=1024").fits
    assert predict(
        "llama_7b_4x4090",
        "cluster.name=l40s_x8",
        "cluster.gpus=8",
        "plan.data_parallel=8",
        "workload.global_batch_size=8",
    ).fits


def test_ddp_on_two_gpus_costs_little_more_than_one_gpu() -> None:
    one, two = predict("gpt2_124m_1gpu"), predict("gpt2_124m_2gpu")

    assert 0 == one.breakdown["dp"]
    assert one.step_time < two.step_time < 1.2 * one.step_time


def test_llama3_405b_comes_out_near_the_throughput_its_paper_prints() -> None:
    """The Llama 3 Herd of Models (arXiv 2407.21783), Table 4: 400 TFLOP/s per GPU on 16,384 GPUs; nothing was fitted to it."""
    prediction = predict("llama3_405b_16384xh100")

    assert prediction.fits
    assert 400e12 == pytest.approx(prediction.model_flops_per_gpu, rel=0.05)
