"""Layers dealt out by time: the busiest rank takes least, and the plan found runs as it is written."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.job import job_from_names, load_job
from simulator.search.search import search
from simulator.search.space import make_space, read_ranges
from simulator.search.split import _least, _moved, timed_split
from simulator.simulation import simulate_job
from tests.command import Dtsim

SETTINGS = ["workload.global_batch_size=32", "workload.sequence_length=2048"]


def busiest(counts: tuple[int, ...], seconds: np.ndarray, fixed: np.ndarray, rank_of: np.ndarray) -> float:
    ends = np.cumsum(counts)
    chunks = [seconds[end - count : end].sum() for count, end in zip(counts, ends, strict=True)]
    return float(np.bincount(rank_of, weights=np.array(chunks) + fixed).max())


@pytest.mark.parametrize("seed", range(20))
def test_no_split_has_a_less_busy_chunk(seed: int) -> None:
    chance = np.random.default_rng(seed)
    layers, chunks = int(chance.integers(5, 12)), int(chance.integers(2, 5))
    seconds, fixed = chance.uniform(0.5, 2.0, layers), np.zeros(chunks)
    fixed[0], fixed[-1] = chance.uniform(0, 1), chance.uniform(0, 4)
    cuts = combinations(range(1, layers), chunks - 1)
    every = [tuple(np.diff([0, *cut, layers]).tolist()) for cut in cuts]
    alone = np.arange(chunks)
    best = min(busiest(counts, seconds, fixed, alone) for counts in every)
    found = _least(tuple(seconds.tolist()), tuple(fixed.tolist()))
    assert sum(found) == layers
    assert busiest(found, seconds, fixed, alone) == pytest.approx(best, rel=1e-9)


def test_moving_layers_between_chunks_of_ranks_helps_and_ends() -> None:
    seconds, fixed = np.ones(16), np.array([0.2, 0, 0, 0, 0, 0, 0, 2.6])
    rank_of = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    found = _moved(seconds, fixed, rank_of, np.full(8, 2))
    assert sum(found) == 16
    assert min(found) >= 1
    assert busiest(found, seconds, fixed, rank_of) < busiest((2,) * 8, seconds, fixed, rank_of)


def test_a_large_head_leaves_the_last_rank_fewer_layers() -> None:
    settings = [*SETTINGS, "plan.pipeline_parallel=4"]
    job = job_from_names("llama3_8b", "h100_x8", settings)
    found = timed_split(job)
    assert sum(found) == 32
    assert found[-1] < 8
    split = job_from_names("llama3_8b", "h100_x8", [*settings, f"plan.layer_split={list(found)}"])
    assert simulate_job(split).step_time < simulate_job(job).step_time


def test_what_is_dealt_out_so_anyway_is_refused() -> None:
    with pytest.raises(PlanError, match="1 chunk"):
        timed_split(job_from_names("llama3_8b", "h100_x8", SETTINGS))
    space = make_space(
        job_from_names("gpt3_1_3b", "h100_x8", SETTINGS),
        read_ranges(["pipeline_parallel=1,2", "layer_split=balanced,timed"]),
        {},
    )
    answer = search(space)
    assert answer.proven
    assert sum(answer.disposed.values()) == 4
    assert any("1 chunk" in reason for reason in answer.refused.values())


def test_the_plan_found_is_written_with_its_layers(dtsim: Dtsim, tmp_path: Path) -> None:
    file = tmp_path / "found.toml"
    words = ("search", "--model", "llama3_8b", "--cluster", "h100_x8")
    settings = [f"--set={setting}" for setting in (*SETTINGS, "plan.pipeline_parallel=4")]
    code, out, _ = dtsim(*words, *settings, "--range", "layer_split=timed", "--json", "-o", str(file))
    chosen = json.loads(out)["chosen"]
    assert code == 0
    assert load_job(file).plan.layer_split
    assert simulate_job(load_job(file)).step_time == chosen["step_time_s"]
    (setting,) = chosen["settings"]
    again = job_from_names("llama3_8b", "h100_x8", [*SETTINGS, "plan.pipeline_parallel=4", setting])
    assert simulate_job(again).step_time == chosen["step_time_s"]


def test_lists_of_layers_may_be_fixed_and_ranged(dtsim: Dtsim) -> None:
    words = (
        "search",
        "--model",
        "llama3_8b",
        "--cluster",
        "h100_x8",
        "--set",
        SETTINGS[0],
        "--fix",
        "pipeline_parallel=2",
        "--json",
    )
    code, out, _ = dtsim(*words, "--range", "layer_split=[16,16],[17,15],balanced", "--fix", "tensor_parallel=4")
    assert code == 0
    assert json.loads(out)["space"]["plans"] == 3
    code, out, _ = dtsim(*words, "--fix", "layer_split=[17,15]", "--range", "tensor_parallel=2,4")
    assert code == 0
    assert json.loads(out)["best"]


def test_other_words_are_refused(dtsim: Dtsim) -> None:
    code, _, error = dtsim("search", "--model", "llama3_8b", "--cluster", "h100_x8", "--range", "layer_split=fair")
    assert code == 2
    assert "layer_split" in error
