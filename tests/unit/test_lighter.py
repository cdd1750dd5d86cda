"""What is known of a plan from the kernels of one that keeps everything."""

from __future__ import annotations

import itertools

import pytest

from simulator.errors import SimulatorError
from simulator.job import job_from_names
from simulator.lowering import begin, resolve
from simulator.search.bounds import least_seconds
from simulator.search.candidate import look
from simulator.search.lighter import Lighter, keeps_everything
from simulator.search.search import search
from simulator.search.space import Space, make_space, read_ranges

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
    "loop": ("llama3_8b", "h100_x8", "workload.global_batch_size=16", "plan.framework=maxtext"),
}


@pytest.mark.parametrize("which", SPACES)
def test_no_sibling_has_less_to_run_than_is_said_of_it(which: str) -> None:
    model, cluster, *settings = SPACES[which]
    space = space_of(
        model, cluster, *settings, ranges=("tensor_parallel=1,2", "pipeline_parallel=1,2", "microbatch_size=1,2")
    )
    lighter, kernels, spoken = Lighter(space), {}, 0
    for point in space.points():
        try:
            job = space.job_of(point)
            resolved = resolve(job.workload, job.plan, job.cluster.world_size)
            kernels[point.number] = least_seconds(job, begin(job.workload, resolved), 0.0)
        except SimulatorError:
            continue
        if keeps_everything(resolved):
            lighter.learn(point, kernels[point.number])
    for point in space.points():
        if point.number in kernels:
            spoken += lighter.bound(point) > 0
            assert lighter.bound(point) <= kernels[point.number] * (1 + 1e-12), point.settings
    assert spoken > 8 or which == "loop"  # copies what it keeps, so that keeping all may take longer


def test_what_is_known_belongs_to_recompute_and_zero_stage_alone() -> None:
    space = space_of("gpt3_1_3b", "h100_x8", "workload.global_batch_size=32", ranges=("microbatch_size=1,2",))
    lighter, points = Lighter(space), {tuple(p.values.values()): p for p in space.points()}
    lighter.learn(points[1, "none", 1], 5.0)
    for micro, kind, stage in itertools.product((1, 2), ("none", "selective", "full"), (0, 1, 2, 3)):
        assert lighter.bound(points[micro, kind, stage]) == (5.0 if micro == 1 and stage in (1, 2) else 0.0)
    lighter.learn(points[2, "none", 3], 7.0)
    assert [lighter.bound(points[2, "full", stage]) for stage in (0, 1, 2, 3)] == [0.0, 0.0, 0.0, 7.0]


def test_a_bound_that_is_known_is_all_that_is_asked_of_a_plan_which_may_be() -> None:
    space = space_of("gpt3_1_3b", "h100_x8", "workload.global_batch_size=32", ranges=("tensor_parallel=1,3",))
    points = list(space.points())
    found = look(space, points[0], "step_time", 0.9, cut=1.0, lighter=2.0)
    assert (found.bound, found.full, found.job is None) == (2.0, 0.0, False)
    assert look(space, points[-1], "step_time", 0.9, cut=1.0, lighter=2.0).job is None  # 3 ranks divide no heads
    assert look(space, points[0], "step_time", 0.9, cut=3.0, lighter=2.0).bound < 2.0


@pytest.mark.parametrize("objective", ["step_time", "cost", "memory"])
def test_searches_find_what_they_found_and_no_bound_is_above_a_step(objective: str) -> None:
    space = space_of(*SPACES["dense"], ranges=("tensor_parallel=1,2", "microbatch_size=1,2"))
    exact, grid = search(space, objective=objective, top=1), search(space, "grid", objective, top=1)
    assert exact.proven
    assert exact.best[0].point == grid.best[0].point
    for number, candidate in grid.candidates.items():
        if number in exact.ledger.bounds:
            assert exact.ledger.bounds[number] <= candidate.value(objective)
