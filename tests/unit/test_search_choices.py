"""What a search tells beside its best plans: what each choice costs, what lacks where nothing fits, what was searched."""

from __future__ import annotations

import math

import pytest

from simulator.job import job_from_names
from simulator.search.answer import Answer
from simulator.search.search import search
from simulator.search.space import Space, make_space, read_ranges
from tests.command import Dtsim

SMALL = [
    "tensor_parallel=1,2,4",
    "pipeline_parallel=1,2",
    "microbatch_size=1,2",
    "zero_stage=0,1",
    "recompute=none,full",
]


def space_of(model: str, cluster: str, settings: list[str], ranges: list[str]) -> Space:
    return make_space(job_from_names(model, cluster, settings), read_ranges(ranges), {})


@pytest.fixture(scope="module")
def small() -> Space:
    return space_of("gpt3_1_3b", "h100_x8", ["workload.global_batch_size=32"], SMALL)


@pytest.fixture(scope="module")
def grid(small: Space) -> Answer:
    return search(small, "grid")


def test_choices_say_what_each_value_costs(grid: Answer) -> None:
    by_name = {(c.field, c.value): c for c in grid.choices}
    first = grid.best[0]
    for field, value in first.point.values.items():
        assert by_name[field, value].over == 0.0
    for c in grid.choices:
        of_it = [one.step_time for one in grid.best if one.point.values[c.field] == c.value]
        assert (c.over is None) == (not of_it)
        assert c.over is None or c.over == pytest.approx(min(of_it) / first.step_time - 1.0)


def test_what_a_choice_costs_lies_between_its_bound_and_the_best_plan_of_it_that_was_simulated(
    small: Space, grid: Answer
) -> None:
    """A sample has some plan of most choices, which need not be the best of them."""
    truth = {(c.field, c.value): c.over for c in grid.choices}
    choices = search(small, top=1).choices
    assert any(c.bounded and c.best for c in choices)
    for c in choices:
        true = truth[c.field, c.value]
        assert (c.over is None) == (true is None)
        if c.over is not None and true is not None:
            most = math.inf if c.most is None else c.most
            assert c.over - 1e-12 <= true <= most + 1e-12
            assert c.bounded or c.over == pytest.approx(true)
            assert (" to " in c.words) == (c.bounded and c.best is not None)


def test_where_nothing_fits_the_nearest_is_told() -> None:
    """Plans that shard less are found too large together with those that shard more: none of them is as near."""
    ranges = ["zero_stage=0,1,2,3", "tensor_parallel=1,2,4,8", "recompute=none,full", "microbatch_size=1,2"]
    space = space_of("llama3_70b", "h100_x8", ["workload.global_batch_size=8"], ranges)
    answer, grid = search(space), search(space, "grid")
    assert not answer.best
    assert answer.nearest
    assert grid.nearest
    assert answer.nearest.peak_memory == grid.nearest.peak_memory
    assert len(answer.candidates) < space.size / 8
    assert sum(answer.disposed.values()) == space.size


def test_a_batch_that_nobody_gave_is_that_of_the_gpus_that_are_fixed(dtsim: Dtsim) -> None:
    words = ("search", "--model", "gpt3_1_3b", "--cluster", "dgx_h100", "--range", "zero_stage=0,1")
    found = [
        dtsim(*words, *ways)[1].splitlines() for ways in (("--fix", "cluster.gpus=16"), ("--set", "cluster.gpus=16"))
    ]
    assert found[0][1] == found[1][1] == "  16 GPUs of dgx_h100, 16 sequences of 2,048 tokens per step"
    assert [line for line in found[0] if "run it" in line] == [line for line in found[1] if "run it" in line]


def test_where_every_plan_of_a_default_space_is_refused_the_rule_is_told(dtsim: Dtsim) -> None:
    """Most of such a space is there twice, which is no reason that helps."""
    told = dtsim(
        "search",
        "--model",
        "llama3_8b",
        "--cluster",
        "h100_x8",
        "--set",
        "workload.global_batch_size=8",
        "--fix",
        "cluster.gpus=7",
    )[1]
    assert "Every plan is refused; most often: " in told
    assert "is the same" not in told


def test_clusters_are_compared_each_with_its_own_best_plan() -> None:
    settings = ["cluster.gpus=16", "workload.global_batch_size=64", "plan.zero_stage=1"]
    names = ("dgx_a100", "dgx_h100", "v100_dgx2")
    ranges = ["tensor_parallel=1,2,4,8", "microbatch_size=1,2", f"cluster.name={','.join(names)}", "precision=fp16"]
    answer = search(space_of("gpt3_6_7b", "dgx_a100", settings, ranges))
    by_name = {c.value: c for c in answer.choices if c.field == "cluster.name"}
    plans = ranges[:2] + ranges[3:]
    for name in names:
        alone = search(space_of("gpt3_6_7b", name, settings, plans))
        best = by_name[name].best
        assert (best.step_time if best else None) == (alone.best[0].step_time if alone.best else None) or by_name[
            name
        ].bounded
    assert by_name["dgx_h100"].over == 0.0


def test_of_choices_that_nobody_looked_at_nothing_is_said(small: Space) -> None:
    """A search that draws one plan knows one value of each field."""
    answer = search(small, strategy="random", tries=1, seed=3)
    assert len(answer.candidates) == 1
    for choice in answer.choices:
        assert choice.open == choice.plans - (choice.value == answer.best[0].point.values[choice.field])
        assert choice.words == ("best so far" if choice.best else "not known so far")
        assert choice.over in (0.0, None)
