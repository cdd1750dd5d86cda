"""What is known of a plan from the kernels of one that keeps everything."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.errors import SimulatorError
from simulator.job import job_from_names
from simulator.lowering import begin, resolve
from simulator.search.bounds import least_of_any_split, least_seconds
from simulator.search.candidate import look
from simulator.search.held import held_bytes
from simulator.search.lighter import Family, Lighter
from simulator.search.run import Run
from simulator.search.search import search
from simulator.search.space import Point, Space, make_space, read_ranges

AGAIN = ["recompute=none,selective,full", "zero_stage=0,1,2,3"]


def space_of(model: str, cluster: str, *settings: str, ranges: tuple[str, ...] = ()) -> Space:
    return make_space(job_from_names(model, cluster, list(settings)), read_ranges([*ranges, *AGAIN]), {})


SPACES = {
    "dense": ("gpt3_6_7b", "dgx_a100", "cluster.gpus=16", "workload.global_batch_size=64"),
    "one node": ("llama3_8b", "h100_x8", "workload.global_batch_size=16", "plan.framework=torchtitan"),
    "sharded": ("llama3_8b", "h100_x8", "workload.global_batch_size=16", "plan.framework=deepspeed"),
    "experts": (
        "mixtral_8x7b",
        "dgx_h100",
        "cluster.gpus=16",
        "workload.global_batch_size=32",
        "plan.expert_parallel=4",
    ),
    "buckets that stay": ("t5_large", "h100_x8", "workload.global_batch_size=16", "plan.framework=pytorch_ddp"),
    "loop": ("llama3_8b", "h100_x8", "workload.global_batch_size=16", "plan.framework=maxtext"),
}


@pytest.mark.parametrize("which", SPACES)
def test_no_plan_has_less_to_run_than_is_said_of_its_family(which: str) -> None:
    model, cluster, *settings = SPACES[which]
    space = space_of(
        model, cluster, *settings, ranges=("tensor_parallel=1,2", "pipeline_parallel=1,2", "microbatch_size=1,2")
    )
    lighter, spoken = Lighter(space, "step_time"), 0
    for point in space.points():
        try:
            kernels = kernels_of(space, point)
        except SimulatorError:
            continue
        for enough in (0.0, math.inf):
            bound, _ = lighter.bound(point.number, enough)
            spoken += bound > 0
            assert bound <= kernels * (1 + 1e-12), point.settings
    assert spoken > 16


def kernels_of(space: Space, point: Point) -> float:
    job = space.job_of(point)
    return least_seconds(job, begin(job.workload, resolve(job.workload, job.plan, job.cluster.world_size)), 0.0)


BESIDE = (
    "overlap_gradients=true,false",
    "overlap_parameters=true,false",
    "optimizer_offload=0.0,0.5",
    "activation_offload=0,1",
    "parameter_offload=0.0,0.5",
)


@pytest.mark.parametrize("framework", ["megatron_core", "deepspeed", "torchtitan", "maxtext"])
def test_what_runs_beside_kernels_or_goes_to_the_host_changes_none_of_them(framework: str) -> None:
    ranges = [f"plan.{text}" for text in BESIDE] + ["plan.zero_stage=0,1,2", "plan.pipeline_parallel=1,2"]
    job = job_from_names("llama3_8b", "h100_x8", ["workload.global_batch_size=16", f"plan.framework={framework}"])
    space = make_space(job, read_ranges(ranges), {})
    family, kernels = Family(space, "step_time", {f"plan.{text.split('=')[0]}": None for text in BESIDE}), {}
    for point in space.points():
        try:
            kernels.setdefault(point.values["plan.pipeline_parallel"], set()).add(kernels_of(space, point))
        except SimulatorError:
            continue
        assert len(family.others(point.number)) == 6
    assert [len(found) for found in kernels.values()] == [1, 1]


def test_a_family_is_all_that_differ_in_what_its_lightest_member_has_least_of() -> None:
    space = space_of("gpt3_1_3b", "h100_x8", "workload.global_batch_size=32", ranges=("microbatch_size=1,2",))
    lighter, known = Lighter(space, "step_time"), {}
    for point in space.points():
        micro, kind, stage = point.values.values()
        wide, others = lighter.bound(point.number, 0.0)
        gathers = stage == 3
        assert known.setdefault((micro, gathers), wide) == wide
        assert others == {"plan.recompute": range(3), "plan.zero_stage": [3] if gathers else [0, 1, 2]}
        close, others = lighter.bound(point.number, math.inf)
        assert close == wide if kind == "none" or gathers else close > wide, point.settings
        if close > wide:
            assert others == {"plan.zero_stage": [0, 1, 2]}
    assert len(known) == 4
    assert len(set(known.values())) == 2


def test_a_bound_of_any_split_is_below_that_of_every_split() -> None:
    job = job_from_names(
        "llama3_8b",
        "h100_x8",
        ["workload.global_batch_size=16", "plan.pipeline_parallel=4", "plan.framework=megatron_core"],
    )
    space = make_space(job, read_ranges(["plan.microbatch_size=1,2,4", "plan.chunks_per_rank=1,2"]), {})
    for point in space.points():
        found = space.job_of(point)
        state = begin(found.workload, resolve(found.workload, found.plan, found.cluster.world_size))
        least = least_of_any_split(found, state)
        counts = [chunk.layers for chunk in state.chunks]
        tried = []
        for shift in range(-3, 4):
            moved = [*counts]
            moved[0] += shift
            moved[-1] -= shift
            if min(moved) < 1:
                continue
            plan = found.plan.model_copy(update={"layer_split": tuple(moved)})
            other = replace(found, plan=plan)
            split = begin(other.workload, resolve(other.workload, plan, other.cluster.world_size))
            tried.append(least_seconds(other, split, 0.0))
        assert len(tried) > 2
        assert 0.5 * min(tried) < least <= min(tried), point.settings


def test_plans_that_shard_more_are_looked_at_first_and_speak_for_those_that_shard_less() -> None:
    space = space_of(
        "gpt3_6_7b", "dgx_a100", "cluster.gpus=8", "workload.global_batch_size=64", ranges=("microbatch_size=2,8",)
    )
    run = Run(space, "step_time", 0.9)
    list(run.looks(run.numbers))
    assert len(run.large) > 3
    for number in run.large:
        point = space.at(number)
        own = look(space, point, "step_time", 0.9)
        assert own.too_large or own.job is None, point.settings
        assert own.full >= run.large[number] * (1 - 1e-9)


def states_of(space: Space, point: Point) -> np.ndarray:
    job = space.job_of(point)
    return held_bytes(job, begin(job.workload, resolve(job.workload, job.plan, job.cluster.world_size)))


@pytest.mark.parametrize("framework", ["megatron_core", "deepspeed", "pytorch_ddp", "colossalai"])
def test_ranks_hold_no_more_where_more_is_sharded_until_weights_are(framework: str) -> None:
    settings = ["cluster.gpus=16", "workload.global_batch_size=32", f"plan.framework={framework}"]
    ranges = [
        "plan.pipeline_parallel=1,2",
        "plan.recompute=none,full",
        "plan.optimizer_offload=0.0,1.0",
        "plan.zero_stage=0,1,2",
    ]
    space = make_space(job_from_names("llama3_8b", "dgx_h100", settings), read_ranges(ranges), {})
    held: dict[tuple[object, ...], dict[int, np.ndarray]] = {}
    for point in space.points():
        *others, stage = point.values.values()
        try:
            held.setdefault(tuple(others), {})[stage] = states_of(space, point)
        except SimulatorError:
            continue
    pairs = [(some[a], some[b]) for some in held.values() for a, b in itertools.combinations(sorted(some), 2)]
    assert len(pairs) > 5
    for less, more in pairs:
        assert (more <= less * (1 + 1e-9)).all()


@pytest.mark.parametrize("objective", ["step_time", "cost", "memory"])
def test_searches_find_what_they_found_and_no_bound_is_above_a_step(objective: str) -> None:
    space = space_of(*SPACES["dense"], ranges=("tensor_parallel=1,2", "microbatch_size=1,2"))
    exact, grid = search(space, objective=objective, top=1), search(space, "grid", objective, top=1)
    assert exact.proven
    assert exact.best[0].point == grid.best[0].point
    for number, candidate in grid.candidates.items():
        if number in exact.ledger.bounds:
            assert exact.ledger.bounds[number] <= candidate.value(objective)
