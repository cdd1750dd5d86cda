"""Does the choice hold: in every world the best plan is the best, and the regret what keeping the chosen one costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.job import job_from_names
from simulator.search.search import search
from simulator.search.space import Space, make_space, read_ranges
from simulator.simulation import simulate_job
from simulator.studies.guide import node_bandwidth, with_network
from simulator.studies.sensitivity import Sensitivity, sensitivity
from tests.command import Dtsim

SETTINGS = ["cluster.gpus=16", "workload.global_batch_size=64"]
RANGES = ["tensor_parallel=1,2,4,8", "zero_stage=1,3", "microbatch_size=1,2"]


@pytest.fixture(scope="module")
def space() -> Space:
    return make_space(job_from_names("gpt3_6_7b", "dgx_a100", SETTINGS), read_ranges(RANGES), {})


@pytest.fixture(scope="module")
def found(space: Space) -> Sensitivity:
    answer = search(space)
    assert answer.chosen
    return sensitivity(space, answer.chosen)


def test_the_regret_is_the_kept_plan_beside_the_best_there(space: Space, found: Sensitivity) -> None:
    world = next(world for world in found.worlds if world.name == "network half")
    cluster = with_network(space.job.cluster, node_bandwidth(space.job.cluster) / 2)
    there = replace(space, job=replace(space.job, cluster=cluster))
    best = search(there, "grid", top=1).best[0]
    kept = simulate_job(there.job_of(found.chosen.point))
    assert world.best
    assert world.kept
    assert (world.best.step_time, world.kept.step_time) == (best.step_time, kept.step_time)
    assert world.regret == kept.step_time / best.step_time - 1.0


def test_no_plan_is_better_than_the_best_and_the_worst_world_comes_first(found: Sensitivity) -> None:
    regrets = [world.regret for world in found.worlds if world.regret is not None]
    assert min(regrets) >= 0
    assert regrets == sorted(regrets, reverse=True)
    steps = {world.name: world.best.step_time for world in found.worlds if world.best}
    assert (
        steps["network half"] >= steps["network 20 % slower"] >= steps["network 25 % faster"] >= steps["network twice"]
    )
    assert steps["batch half"] < steps["batch twice"]
    assert len(found.to_frame()) == len(found.worlds)


def test_a_plan_that_does_not_fit_there_has_no_regret() -> None:
    job = job_from_names("gpt3_6_7b", "dgx_a100_40", ["cluster.gpus=8", "workload.global_batch_size=64"])
    space = make_space(job, read_ranges(["zero_stage=0,1,3", "recompute=none,full", "microbatch_size=1,2,4,8"]), {})
    answer = search(space, fit_probability=0.0)
    full = max(answer.best, key=lambda one: one.peak_memory)
    world = next(one for one in sensitivity(space, full).worlds if one.name == "memory of a GPU a tenth less")
    assert (world.kept, world.regret) == (None, None)
    assert "does not fit" in world.reason


@pytest.mark.parametrize("objective", ["cost", "memory"])
def test_the_regret_is_of_what_is_made_least(objective: str) -> None:
    settings = ["workload.global_batch_size=48", "plan.zero_stage=1"]
    ranges = read_ranges(["cluster.gpus=8,16,32", "tensor_parallel=2,4", "recompute=none,full"])
    space = make_space(job_from_names("llama2_13b", "dgx_h100", settings), ranges, {})
    answer = search(space, objective=objective)
    assert answer.chosen
    found = sensitivity(space, answer.chosen, objective=objective)
    world = next(world for world in found.worlds if world.name == "network twice")
    cluster = with_network(space.job.cluster, 2 * node_bandwidth(space.job.cluster))
    there = replace(space, job=replace(space.job, cluster=cluster))
    best = search(there, "grid", objective, top=1).best[0]
    assert world.best
    assert world.kept
    assert world.best.value(objective) == best.value(objective)
    assert world.regret == world.kept.value(objective) / best.value(objective) - 1.0
    assert world.regret < 0.2


def test_of_several_clusters_none_is_the_one_that_would_be_other() -> None:
    ranges = read_ranges(["cluster.name=h100_x8,a100_x8", "zero_stage=0,1"])
    space = make_space(job_from_names("gpt3_1_3b", "h100_x8", ["workload.global_batch_size=8"]), ranges, {})
    chosen = search(space).chosen
    assert chosen
    with pytest.raises(SpecError, match=r"cluster\.name is ranged"):
        sensitivity(space, chosen)


def test_the_command_draws_and_tells(dtsim: Dtsim, tmp_path: Path) -> None:
    file = tmp_path / "tornado.png"
    words = [
        "search",
        "--model",
        "gpt3_1_3b",
        "--cluster",
        "h100_x8",
        "--range",
        "zero_stage=0,1",
        "--sensitivity",
        str(file),
    ]
    code, out, _ = dtsim(*words, "--json")
    assert code == 0
    assert {"chosen", "worlds"} == set(json.loads(out)["sensitivity"])
    assert file.read_bytes()[:4] == b"\x89PNG"
    assert "does the choice hold?" in dtsim(*words, "--force")[1]
    assert dtsim(*words)[0] == 2
