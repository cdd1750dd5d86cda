"""Search: the best plan is the best, bounds are below the truth, and what became of every plan is told."""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from typing import Any

import pytest

from simulator.errors import SpecError, UnknownNameError
from simulator.job import Job, job_from_names, load_job
from simulator.report.prediction import QUANTILE
from simulator.search import candidate
from simulator.search.answer import Answer
from simulator.search.begun import Begun, begun
from simulator.search.candidate import fit_probability, look
from simulator.search.defaults import default_ranges
from simulator.search.held import lasting
from simulator.search.quick import quick_search, quick_space
from simulator.search.search import search
from simulator.search.space import Space, make_space, read_ranges
from simulator.simulation import simulate_job

SMALL = [
    "tensor_parallel=1,2,4",
    "pipeline_parallel=1,2",
    "microbatch_size=1,2",
    "zero_stage=0,1",
    "recompute=none,full",
]
SPACES = {
    "dense, all stages and schedules": (
        "llama3_8b",
        "h100_x8",
        ["workload.global_batch_size=32"],
        [
            "tensor_parallel=1,2,4", "pipeline_parallel=1,2,4", "chunks_per_rank=1,2", "zero_stage=0,1,2,3", "microbatch_size=1,2",
            "schedule=one_f_one_b,interleaved_1f1b,zb_h1,chimera,gpipe,dualpipev,combined_1f1b", "recompute=none,full",
        ],
    ),
    "experts": (
        "mixtral_8x7b",
        "dgx_h100",
        ["cluster.gpus=16", "workload.global_batch_size=64", "workload.sequence_length=2048"],
        [
            "tensor_parallel=1,2,4", "sequence_parallel=false,true", "pipeline_parallel=1,2,4", "expert_parallel=1,2,4,8",
            "zero_stage=0,1", "microbatch_size=1,2", "recompute=none,selective,full", "schedule=one_f_one_b,gpipe",
        ],
    ),
    "context parallelism": (
        "llama3_8b",
        "dgx_a100",
        ["cluster.gpus=16", "workload.global_batch_size=16", "workload.sequence_length=8192", "plan.framework=torchtitan"],
        [
            "tensor_parallel=1,2,4", "context_parallel=1,2,4", "pipeline_parallel=1,2", "zero_stage=0,1,3", "microbatch_size=1,2",
            "recompute=none,operators,full", "schedule=one_f_one_b,gpipe,zb_h1", "fsdp_prefetch=0,1",
        ],
    ),
}  # fmt: skip


def space_of(model: str, cluster: str, settings: list[str], ranges: list[str]) -> Space:
    return make_space(job_from_names(model, cluster, settings), read_ranges(ranges), {})


@pytest.fixture(scope="module")
def small() -> Space:
    return space_of("gpt3_1_3b", "h100_x8", ["workload.global_batch_size=32"], SMALL)


@pytest.fixture(scope="module")
def busy() -> Space:
    """Plans that keep GPUs at work, which do not wait for their host."""
    return space_of("gpt3_1_3b", "a100_x8", ["workload.global_batch_size=32"], SMALL)


@pytest.fixture(scope="module")
def grid(small: Space) -> Answer:
    return search(small, "grid")


def figures(answer: Answer, top: int = 10) -> list[tuple[int, float]]:
    return [(one.point.number, one.step_time) for one in answer.best[:top]]


def too_high(space: Space) -> list[list[str]]:
    """Plans whose bound is above what simulate() says."""
    found = []
    for point in space.points():
        looked = look(space, point, "step_time")
        result = looked.simulated()
        if not isinstance(result, str) and (
            looked.bound > result.step_time or looked.full * result.capacity > result.peak_memory
        ):
            found.append(point.settings)
    return found


def test_exact_finds_what_the_grid_finds_and_simulates_less(small: Space, grid: Answer) -> None:
    exact = search(small)
    assert figures(exact) == figures(grid)
    assert (exact.proven, grid.proven, exact.gap) == (True, True, 0.0)
    assert exact.disposed["bounded"] > 0
    assert grid.disposed["bounded"] == 0
    assert sum(exact.disposed.values()) == sum(grid.disposed.values()) == small.size


@pytest.mark.parametrize("objective", ["energy", "cost", "memory"])
def test_other_objectives_are_proven_too(busy: Space, objective: str) -> None:
    exact, brute = search(busy, objective=objective), search(busy, "grid", objective=objective)
    assert exact.proven
    assert exact.disposed["bounded"] > 0
    values = [[one.value(objective) for one in answer.best[:10]] for answer in (exact, brute)]
    assert values[0] == values[1] == sorted(values[0])


@pytest.mark.parametrize("name", ["busy", pytest.param("experts", marks=pytest.mark.slow)])
def test_energy_is_above_its_bound_and_not_by_far(name: str, busy: Space) -> None:
    space = busy if name == "busy" else space_of(*SPACES[next(key for key in SPACES if "expert" in key)])
    parts = []
    for point in space.points():
        looked = look(space, point, "energy")
        result = looked.simulated()
        if not isinstance(result, str):
            assert result.energy is not None
            parts.append(looked.bound / result.energy)
    assert max(parts) <= 1.0
    assert statistics.median(parts) > 0.5


def test_the_best_is_a_prediction_of_simulate(small: Space, grid: Answer) -> None:
    first = grid.best[0]
    again = simulate_job(small.job_of(first.point))
    assert (again.step_time, again.low, again.peak_memory) == (first.step_time, first.low, first.peak_memory)
    by_hand = load_job_with(small.job, first.point.settings)
    assert simulate_job(by_hand).step_time == first.step_time


def load_job_with(job: Job, settings: list[str]) -> Job:
    return job_from_names("gpt3_1_3b", "h100_x8", ["workload.global_batch_size=32", *settings])


def test_bounds_are_below_the_truth_and_one_a_hundredth_too_high_is_caught(
    small: Space, grid: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert too_high(small) == []
    planted = grid.best[3]
    plan, real = small.job_of(planted.point).plan, candidate.least_seconds
    monkeypatch.setattr(
        candidate,
        "least_seconds",
        lambda job, state, *cut: 1.01 * planted.step_time if job.plan == plan else real(job, state, *cut),
    )
    assert too_high(small) == [planted.point.settings]


def test_a_bound_above_the_cut_need_not_be_close(small: Space, grid: Answer) -> None:
    cut = grid.best[3].step_time
    for point in small.points():
        whole, near = look(small, point, "step_time"), look(small, point, "step_time", cut=cut)
        assert near.bound <= whole.bound
        assert near.bound == whole.bound or near.bound > cut


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_brute_force_agrees_on_a_thousand_plans(name: str) -> None:
    space = space_of(*SPACES[name])
    assert space.size >= 1000
    exact, brute = search(space), search(space, "grid")
    assert figures(exact) == figures(brute)
    assert exact.proven
    assert too_high(space) == []


def test_a_bound_of_memory_one_a_hundredth_too_high_is_caught(
    small: Space, grid: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = grid.best[3]
    plan, real = small.job_of(planted.point).plan, candidate.least_bytes
    high = 1.01 * planted.peak_memory
    monkeypatch.setattr(
        candidate, "least_bytes", lambda job, state, *most: high if job.plan == plan else real(job, state, *most)
    )
    assert too_high(small) == [planted.point.settings]


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 0.9, 0.999, 1.0])
def test_what_is_too_large_by_its_bound_does_not_fit(probability: float) -> None:
    settings = [
        "cluster.gpus=8",
        "workload.global_batch_size=64",
        "plan.tensor_parallel=4",
        "plan.sequence_parallel=true",
    ]
    ranges = ["microbatch_size=1,2,4,8", "zero_stage=0,1,3", "recompute=none,full", "pipeline_parallel=1,2"]
    space = space_of("llama2_13b", "dgx_a100_40", settings, ranges)
    exact, brute = search(space, fit_probability=probability), search(space, "grid", fit_probability=probability)
    assert figures(exact) == figures(brute)
    assert len(exact.candidates) < space.size - len(exact.refused)
    for number in exact.large:
        result = look(space, space.at(number), "step_time").simulated()
        assert isinstance(result, str) or not result.feasible(probability)


@pytest.mark.parametrize("model", ["llama2_13b", "mixtral_8x7b"])
def test_a_peak_is_no_surer_than_the_bound_of_its_spread_says(model: str) -> None:
    ranges = [
        "tensor_parallel=1,4", "pipeline_parallel=1,2", "microbatch_size=1,4", "zero_stage=0,1,2,3", "recompute=none,full",
    ]  # fmt: skip
    space = space_of(model, "dgx_a100", ["cluster.gpus=16", "workload.global_batch_size=64"], ranges)
    parts = []
    for point in space.points():
        looked = look(space, point, "step_time")
        if looked.job is None:
            continue
        found = simulate_job(looked.job)
        peak, high = found.peak_memory, found.memory_band(found.fullest)[1]
        parts.append(_least_spread(begun(space, point), peak) / (math.log(high / peak) / QUANTILE))
    assert max(parts) < 1.0 + 1e-9
    assert statistics.median(parts) > 0.5


def _least_spread(one: Begun, peak: float) -> float:
    return lasting(one.job.workload, one.resolved, lambda: one.state).spread(peak)


@pytest.mark.parametrize("model", ["gpt3_6_7b", "mixtral_8x7b"])
def test_what_is_too_large_with_another_plan_is_so_by_itself(model: str) -> None:
    ranges = [
        "tensor_parallel=1,2", "pipeline_parallel=1,2,4", "chunks_per_rank=1,2", "microbatch_size=1,2,4,8", "zero_stage=0,2,3",
        "recompute=none,selective,full", "schedule=one_f_one_b,interleaved_1f1b,gpipe,looped_bfs,zb_h1,chimera",
        "layer_split=balanced,timed",
    ]  # fmt: skip
    space = space_of(model, "dgx_a100_40", ["cluster.gpus=16", "workload.global_batch_size=64"], ranges)
    answer = search(space)
    small = []
    for number in answer.large:
        alone = look(space, space.at(number), "step_time", 0.9)
        if alone.job is not None and not alone.too_large:
            small.append(space.at(number).settings)
    assert not small
    assert len(answer.large) > 100


def test_a_planted_bound_changes_the_answer(small: Space, grid: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If bounds could be too high without a trace, the tests above would prove nothing."""
    real = candidate.least_seconds
    best = small.job_of(grid.best[0].point).plan
    monkeypatch.setattr(
        candidate, "least_seconds", lambda job, *more: real(job, *more) * (100.0 if job.plan == best else 1.0)
    )
    assert figures(search(small, top=1), 1) != figures(grid, 1)


def test_the_answer_does_not_depend_on_the_number_of_processes(small: Space) -> None:
    one, two = search(small), search(small, processes=2)
    assert {**one.to_dict(), "seconds": 0} == {**two.to_dict(), "seconds": 0}


def test_stopped_early_it_gives_the_best_so_far_and_the_gap(small: Space) -> None:
    run_out = search(small, budget=1e-9)
    assert (run_out.proven, run_out.gap) == (False, None)
    assert 1 <= run_out.disposed["simulated"] < small.size
    assert sum(run_out.disposed.values()) == small.size
    assert search(small, "grid", deadline=1e6).proven


def test_ctrl_c_keeps_what_is_known(small: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.search.run import Run

    plain, times = Run.simulate, []

    def interrupted(self: Run, looked: Any) -> Any:
        times.append(len(looked))
        if len(times) == 2:
            raise KeyboardInterrupt
        return plain(self, looked)

    monkeypatch.setattr(Run, "simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):  # whoever asks for one plan must not take half a search for a whole one
        search(small)
    times.clear()
    answer = search(small, partial=True)
    assert answer.best
    assert not answer.proven
    assert answer.gap is not None
    assert 0.0 <= answer.gap < 1.0
    assert answer.disposed["open"] > 0


@pytest.mark.parametrize("strategy", ["random", "annealing", "descent", "bayesian"])
def test_strategies_that_draw_repeat_with_their_seed_and_prove_nothing_false(
    small: Space, strategy: str, grid: Answer
) -> None:
    if strategy == "bayesian":
        pytest.importorskip("optuna")
    one, same = search(small, strategy, tries=12, seed=1), search(small, strategy, tries=12, seed=1)
    assert figures(one) == figures(same)
    assert not one.proven or one.best[0].step_time == grid.best[0].step_time  # where bounds leave nothing open
    assert one.best[0].step_time >= grid.best[0].step_time
    assert len(one.candidates) <= 12 + 1


@pytest.mark.parametrize("strategy", ["random", "descent", "bayesian"])
def test_who_has_simulated_all_has_proven_it_and_draws_no_more(strategy: str) -> None:
    if strategy == "bayesian":
        pytest.importorskip("optuna")
    space = space_of(
        "gpt3_1_3b", "h100_x8", ["workload.global_batch_size=32"], ["tensor_parallel=1,2", "zero_stage=1,2"]
    )
    begun = time.process_time()
    answer = search(space, strategy, tries=100_000)
    assert time.process_time() - begun < 60
    assert answer.proven
    assert "no plan of the space" in answer.to_dict()["provenance"]["proves"]
    assert answer.best[0].point.number == search(space).best[0].point.number


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        ("llama3_8b", 8),
        pytest.param("llama3_70b", 512, marks=pytest.mark.slow),
        pytest.param("mixtral_8x7b", 64, marks=pytest.mark.slow),
    ],
)
def test_a_quick_search_finds_nearly_the_best_of_its_space(model: str, gpus: int) -> None:
    sizes = [f"cluster.gpus={gpus}", f"workload.global_batch_size={4 * gpus}", "workload.sequence_length=4096"]
    job = job_from_names(model, "dgx_h100", sizes)
    quick, whole = quick_search(job), search(quick_space(job), top=1)
    assert quick.best[0].step_time <= 1.03 * whole.best[0].step_time
    assert len(quick.candidates) <= 48
    assert figures(quick) == figures(quick_search(job))


def test_a_strategy_whose_library_is_missing_says_how_to_get_it(small: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SpecError, match="pip install 'dtsim"):
        search(small, "bayesian", tries=3)


def test_progress_counts_every_plan_once_and_says_what_is_left(small: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.search.run._EVERY", 0.0)
    lines: list[str] = []
    search(small, tell=lines.append)
    for line in lines:
        counts = [int(part.split()[0].replace(",", "")) for part in line.partition("; ")[2].split(", ")]
        assert sum(counts) == small.size
        assert (" left; " in line or " left of looking; " in line) or "best" not in line
    looking, simulating = (
        [line for line in lines if word in line] for word in ("plans looked at", "promising plans simulated")
    )
    assert lines == looking + simulating  # a bar that is full while plans wait to be simulated would be none
    assert simulating
    assert "best " in lines[-1]
    assert any("gap " in line for line in lines)


def test_a_plan_must_fit_with_the_probability_asked_for() -> None:
    settings = ["workload.global_batch_size=64", "plan.tensor_parallel=4", "plan.sequence_parallel=true"]
    space = space_of(
        "llama2_13b", "dgx_a100_40", ["cluster.gpus=8", *settings], ["microbatch_size=1,2,4", "zero_stage=0,1,3"]
    )
    sure, likely, point = (search(space, fit_probability=p) for p in (0.99, 0.5, 0.0))
    assert {one.point.number for one in sure.best} <= {one.point.number for one in likely.best}
    assert all(one.fit_probability >= 0.99 for one in sure.best)
    assert all(one.fits for one in point.best)


def test_the_probability_is_a_half_where_the_peak_is_the_memory() -> None:
    prediction = simulate_job(load_job("gpt3_175b", ["plan.zero_stage=1"]))
    low, high = prediction.memory_band(prediction.fullest)
    assert low < prediction.peak_memory < high < prediction.capacity
    assert 0.9 < fit_probability(prediction) <= 1.0


def test_the_default_space_names_its_ranges_and_holds_what_is_fixed() -> None:
    job = job_from_names("mixtral_8x7b", "dgx_h100", ["cluster.gpus=16", "workload.global_batch_size=64"])
    ranges = default_ranges(job)
    assert {"plan.tensor_parallel", "plan.expert_parallel", "plan.zero_stage"} <= set(ranges)
    space = make_space(job, {}, read_ranges(["zero_stage=1", "precision=fp8"], "--fix"))
    assert "plan.zero_stage" not in space.ranges
    assert (space.job.plan.zero_stage, space.job.workload.precision) == (1, "fp8")
    assert space.size == len(list(space.points()))
    assert [space.at(point.number).values for point in space.points()][:50] == [p.values for p in space.points()][:50]


@pytest.mark.parametrize(
    ("ranges", "fixed", "told"),
    [
        (["plan.tensor_parallel"], [], "expected FIELD=V,V"),
        (["plan.tensor_parallel=1,1"], [], "stands there twice"),
        (["plan.tensor_parallel=0,1"], [], "expected at least 1"),
        (["plan.zero_stage=7"], [], "expected at most 3"),
        (["zero_stage=0", "plan.zero_stage=1"], [], "given twice"),
        (["zero_stage=0,1"], ["zero_stage=1"], "both ranged and fixed"),
        ([], ["zero_stage=0,1"], "takes one value"),
        (["global_batch_size=0,8"], [], "whole numbers above zero"),
    ],
)
def test_ranges_that_cannot_be_are_refused(ranges: list[str], fixed: list[str], told: str) -> None:
    job = job_from_names("gpt3_1_3b", "h100_x8")
    with pytest.raises(SpecError, match=told):
        make_space(job, read_ranges(ranges), read_ranges(fixed, "--fix"))


@pytest.mark.parametrize(
    "word",
    [
        "plan.tensor_paralel=1", "frobnicate=1", "cluster.name=dgx_h101", "workload.precision=fp7", "schedule=1f1b,zb_hl",
        "framework=megatron_lm,torchtitans", "layout=megatron,2d", "gradient_exchange=all_reduced", "recompute_policy=save_nothing",
    ],
)  # fmt: skip
def test_unknown_fields_and_names_offer_the_nearest(word: str) -> None:
    with pytest.raises(UnknownNameError):
        make_space(job_from_names("gpt3_1_3b", "h100_x8"), read_ranges([word]), {})


@pytest.mark.parametrize(
    "plan", [["schedule=one_f_one_b"], ["chunks_per_rank=2", "schedule=interleaved_1f1b"], ["zero_stage=3"]]
)
def test_a_step_is_linear_in_its_microbatches_once_the_pipeline_is_full(plan: list[str]) -> None:
    """Three equal increments from m = p on: what a search over batches may extrapolate from."""
    settings = ["plan.pipeline_parallel=4", "workload.sequence_length=2048", *(f"plan.{setting}" for setting in plan)]
    steps = []
    for microbatches in (8, 12, 16, 20):
        batch = f"workload.global_batch_size={2 * microbatches}"
        steps.append(simulate_job(job_from_names("llama3_8b", "h100_x8", [*settings, batch])).step_time)
    increments = [after - before for before, after in itertools.pairwise(steps)]
    assert increments == pytest.approx([increments[0]] * 3, rel=1e-9)


def test_sizes_of_the_plan_stay_in_every_plan_of_the_space() -> None:
    """A bucket of a size, say, which a file states with its unit and a plan holds in bytes."""
    job = job_from_names("llama3_8b", "h100_x8", ["plan.bucket_size=200 MB", "workload.global_batch_size=16"])
    space = make_space(job, read_ranges(["tensor_parallel=1,2"]), {})
    assert {2e8} == {space.job_of(point).plan.bucket_size for point in space.points()}
    assert quick_search(job).best
