"""Layers dealt out by dynamic programming: as brute force has it, and within memory; and the strategy that asks for it."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError, SimulatorError, SpecError
from simulator.job import Job, job_from_names
from simulator.search.fitted import fitted_split, least_split
from simulator.search.search import search
from simulator.search.space import make_space, read_ranges
from simulator.simulation import simulate_job
from tests.command import Dtsim

SETTINGS = ["workload.global_batch_size=16", "workload.sequence_length=2048", "plan.pipeline_parallel=4"]


def splits(layers: int, chunks: int) -> list[tuple[int, ...]]:
    return [tuple(np.diff([0, *cut, layers]).tolist()) for cut in combinations(range(1, layers), chunks - 1)]


def busiest(counts: tuple[int, ...], layers: Any, fixed: Any) -> float:
    ends = np.cumsum(counts)
    return max(layers[end - count : end].sum() + stays for count, end, stays in zip(counts, ends, fixed, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_no_split_with_room_has_a_less_busy_rank(seed: int) -> None:
    chance = np.random.default_rng(seed)
    count, chunks = int(chance.integers(5, 11)), int(chance.integers(2, 5))
    layers, fixed, most = (
        chance.uniform(0.5, 2.0, count),
        chance.uniform(0, 2, chunks),
        chance.integers(1, count, chunks),
    )
    able = [one for one in splits(count, chunks) if (np.array(one) <= most).all()]
    found, least = least_split(layers, fixed, most)
    if not able:
        assert found == ()
        return
    assert found in able
    assert least == pytest.approx(busiest(found, layers, fixed), rel=1e-12)
    assert least == pytest.approx(min(busiest(one, layers, fixed) for one in able), rel=1e-12)


def job_of(*settings: str) -> Job:
    return job_from_names("llama3_2_1b", "h100_x8", [*SETTINGS, *settings])


def test_its_step_is_nearly_the_least_of_all_splits() -> None:
    settings = (
        "plan.schedule=one_f_one_b",
        "workload.sequence_length=8192",
    )  # long enough that no rank waits for its host
    found = fitted_split(job := job_of(*settings))
    steps = {}
    for one in splits(job.workload.model.depth, 4):
        if max(one) - min(one) <= 5:  # others are far off
            steps[one] = simulate_job(job_of(*settings, f"plan.layer_split={list(one)}")).step_time
    assert len(steps) > 80
    assert steps[found] <= 1.01 * min(steps.values())
    assert steps[found] < 0.97 * steps[4, 4, 4, 4]


def test_layers_go_to_where_there_is_room() -> None:
    """70B on GPUs of 40 GB: the first ranks hold the activations of most microbatches, so they get the fewest layers."""
    settings = [
        "cluster.gpus=64",
        "workload.global_batch_size=64",
        "workload.sequence_length=8192",
        "plan.tensor_parallel=8",
        "plan.pipeline_parallel=8",
        "plan.sequence_parallel=true",
    ]
    job = job_from_names("llama3_70b", "dgx_a100_40", settings)
    found = fitted_split(job)
    assert found[0] < 10 < found[4]
    assert not simulate_job(job).fits
    assert simulate_job(
        job_from_names("llama3_70b", "dgx_a100_40", [*settings, f"plan.layer_split={list(found)}"])
    ).fits
    with pytest.raises(PlanError, match="no layer split has room"):
        fitted_split(job_from_names("llama3_70b", "dgx_a100_40", [*settings, "plan.microbatch_size=2"]))


def test_the_strategy_finds_what_the_grid_finds_over_even_and_fitted_splits(dtsim: Dtsim) -> None:
    job = job_from_names("llama3_2_1b", "h100_x8", SETTINGS)
    texts = ["pipeline_parallel=1,2,4", "tensor_parallel=1,2", "microbatch_size=1,2", "zero_stage=0,1"]
    found = search(make_space(job, read_ranges(texts), {}), "dp")
    brute = search(make_space(job, read_ranges([*texts, "layer_split=balanced,fitted"]), {}), "grid")
    assert [one.step_time for one in found.best[:10]] == [one.step_time for one in brute.best[:10]]
    assert found.proven
    assert "no layer split" in found.proves
    assert found.space.size == brute.space.size == sum(found.disposed.values())
    fitted = [one for one in brute.best if one.point.values["plan.layer_split"] == "fitted"]
    assert fitted
    again = job_from_names("llama3_2_1b", "h100_x8", [*SETTINGS, *fitted[0].settings])
    assert again.plan.layer_split
    assert simulate_job(again).step_time == fitted[0].step_time
    code, out, _ = dtsim(
        "search", "--model", "llama3_2_1b", "--cluster", "h100_x8", "--set", SETTINGS[0], "--strategy", "dp", "--top", "1",
        "--fix", "tensor_parallel=1", "--fix", "recompute=none", "--fix", "zero_stage=1", "--fix", "chunks_per_rank=1", "--json",
    )  # fmt: skip
    answer = json.loads(out)
    assert code == 0
    assert answer["strategy"] == "dp"
    assert "fitted" in answer["space"]["ranges"]["plan.layer_split"]


def test_a_split_that_is_fixed_leaves_the_strategy_nothing() -> None:
    space = make_space(job_of("plan.layer_split=[4,4,4,4]"), read_ranges(["zero_stage=0,1"]), {})
    with pytest.raises(SpecError, match="strategy dp chooses"):
        search(space, "dp")


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(SimulatorError, match="1 chunk"):
        fitted_split(job_from_names("llama3_2_1b", "h100_x8", SETTINGS[:2]))
