"""Schedules without a flush, whole: updates amid the actions, a step of the steady state, older weights in memory."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from simulator.costs.price import price
from simulator.engine import run
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower, resolve
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES, COMPUTE, Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.report.memory import memory_peaks
from simulator.report.prediction import Prediction
from simulator.report.summary import sure_section
from simulator.report.window import cut_trace, step_window
from simulator.simulation import simulate
from simulator.studies.schedule_figures import schedule_figures
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

ASYNCHRONOUS = ["pipedream", "pipedream_2bw"]


def workload(batch: int, precision: str = "bf16") -> Workload:
    model = load_model("gpt3_1_3b")
    return Workload(model=model, sequence_length=1024, global_batch_size=batch, precision=precision)


@functools.cache
def predicted(schedule: str, ranks: int = 4, replicas: int = 2, batch: int = 16, **plan: object) -> Prediction:
    engine, fold = str(plan.pop("engine", "compiled")), bool(plan.pop("fold", True))
    chosen = Plan(pipeline_parallel=ranks, data_parallel=replicas, microbatch_size=1, schedule=schedule, **plan)
    return simulate(workload(batch), chosen, load_cluster("dgx_a100", ranks * replicas), engine, fold=fold)


def updates(program: Program, rank: int) -> np.ndarray:
    return np.flatnonzero((program.kind == COMPUTE) & (program.action == 4) & (program.rank == rank))


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
def test_the_program_obeys_the_rules_and_its_text_is_its_own(schedule: str) -> None:
    program = lower(workload(8), Plan(pipeline_parallel=4, data_parallel=2, schedule=schedule, zero_stage=1))
    verify(program)
    text = render_text(program)
    assert text == render_text(parse_text(text))


@pytest.mark.parametrize(("schedule", "per_step"), [("pipedream", 8), ("pipedream_2bw", 1)])
def test_weights_change_after_every_backward_or_once_per_step(schedule: str, per_step: int) -> None:
    program = predicted(schedule).program
    steps = 2 * -(-2 * 4 // 8) + 2
    for rank in range(4):
        own = updates(program, rank)
        assert steps * per_step == len(own)
        assert (np.bincount(program.step[own]) == per_step).all()
        assert {1} == set(program.action[own - 1].tolist())  # right after a backward
        last_of_step = program.microbatch[own - 1] % 8 == 7
        assert last_of_step.all() if per_step == 1 else last_of_step.sum() == steps


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_rank_goes_on_only_when_its_gradients_are_added_and_its_weights_are_back(schedule: str, zero: int) -> None:
    p = predicted(schedule, zero_stage=zero)
    program, trace = p.program, p.trace
    names = [program.items[i].name for i in program.item.tolist()]
    of_rank = {
        word: [n for n, name in enumerate(names) if name.startswith(word) and program.rank[n] == 1]
        for word in ("all_reduce gradients", "reduce_scatter gradients", "all_gather")
    }
    own = updates(program, 1)
    reductions = of_rank["all_reduce gradients"] or of_rank["reduce_scatter gradients"]
    gathers = of_rank["all_gather"]
    assert (32 if zero == 2 else len(own)) == len(reductions)
    assert (len(own) if zero else 0) == len(gathers)
    for number, row in enumerate(own.tolist()):
        before = [n for n in reductions if trace.start[n] >= trace.end[row - 1] - 1e-12]
        assert trace.end[before[0]] <= trace.start[row] + 1e-12
        if gathers and number + 1 < len(own):
            assert trace.start[gathers[number]] >= trace.end[row] - 1e-12
            assert trace.start[row + 1] >= trace.end[gathers[number]] - 1e-12


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
@pytest.mark.parametrize("batch", [4, 16, 20])
def test_both_engines_agree(schedule: str, batch: int) -> None:
    a, b = (predicted(schedule, batch=batch, engine=engine) for engine in ("compiled", "simpy"))
    assert a.step_time == pytest.approx(b.step_time, rel=1e-9)
    assert a.breakdown == pytest.approx(b.breakdown, rel=1e-6, abs=1e-9)
    assert a.memory.by_category == pytest.approx(b.memory.by_category)


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
@pytest.mark.parametrize("batch", [4, 16])
def test_folded_and_unfolded_ranks_take_the_same_time(schedule: str, batch: int) -> None:
    some, all_of_them = (predicted(schedule, batch=batch, zero_stage=1, fold=fold) for fold in (True, False))
    assert some.step_time == pytest.approx(all_of_them.step_time, rel=1e-9)
    assert some.breakdown == pytest.approx(all_of_them.breakdown, rel=1e-6, abs=1e-9)
    assert some.peak_memory == pytest.approx(all_of_them.peak_memory)


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
@pytest.mark.parametrize("batch", [4, 16, 20, 64])
def test_every_instant_of_the_window_has_an_account(schedule: str, batch: int) -> None:
    p = predicted(schedule, batch=batch)
    assert p.step_time == pytest.approx(sum(p.breakdown.values()), rel=1e-9)
    assert p.rank_breakdown.sum(axis=1) == pytest.approx([p.step_time] * 4, rel=1e-9)
    assert p.trace.makespan > 2 * p.step_time
    assert "no flush of all ranks" in p.provenance["flush"]


@pytest.mark.parametrize(("schedule", "old"), [("pipedream", [3, 2, 1, 0]), ("pipedream_2bw", [1, 1, 1, 1])])
def test_the_answer_says_how_old_the_weights_of_gradients_are(schedule: str, old: list[int]) -> None:
    """PipeDream, section 3.3: w(t+1) = w(t) - v f(w1(t-n+1), ..., wn(t)); 2BW: one version of delay."""
    found = predicted(schedule, batch=16)
    assert old == found.provenance["staleness"]
    (line,) = [line for line in sure_section(found).lines if "updates old" in line]
    assert ", ".join(map(str, dict.fromkeys(old))) in line
    assert "steps to an accuracy are not predicted" in line
    flushed = predicted("one_f_one_b", batch=16)
    assert "staleness" not in flushed.provenance
    assert not [line for line in sure_section(flushed).lines if "updates old" in line]


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
def test_the_step_is_the_time_between_the_last_backwards_of_the_middle_steps(schedule: str) -> None:
    p = predicted(schedule, batch=16)
    program, trace = p.program, p.trace
    last = [
        trace.end[(program.action == 1) & (program.rank == 0) & (program.microbatch == 8 * (k + 1) - 1)].max()
        for k in (1, 2)
    ]
    assert last[1] - last[0] == p.step_time
    cut = cut_trace(program, trace)
    assert p.step_time == pytest.approx(cut.makespan)


def test_with_fewer_microbatches_than_ranks_a_step_is_averaged_over_as_many() -> None:
    p = predicted("pipedream_2bw", ranks=8, replicas=1, batch=2)
    window = step_window(p.program, p.trace)
    assert 8 / 2 == window.steps
    assert (window.high - window.low) / 4 == p.step_time
    assert 2 * -(-16 // 2) + 2 == p.program.step.max() + 1


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
def test_the_window_in_the_middle_is_as_steady_as_one_of_many_more_steps(schedule: str) -> None:
    """Abstract time, balanced ranks, free messages: m times the work of one microbatch, without a bubble."""
    figures = schedule_figures(schedule, 4, 8)
    assert (24, 0) == (figures.makespan, figures.bubble_fraction)
    p = predicted(schedule, replicas=1, batch=8, layer_split=(6, 6, 6, 6))
    busy = p.rank_breakdown[:, :5].sum(axis=1)  # forward .. host
    assert busy.max() == pytest.approx(p.step_time, rel=0.02)  # the fullest rank never waits


@pytest.mark.parametrize(("schedule", "versions"), [("pipedream", [4, 3, 2, 1]), ("pipedream_2bw", [2, 2, 2, 2])])
def test_older_versions_of_the_weights_stand_in_memory(schedule: str, versions: list[int]) -> None:
    weights = CATEGORIES.index("weights")
    once = predicted("one_f_one_b").memory.by_category[:, weights]
    many = predicted(schedule).memory.by_category[:, weights]
    assert many == pytest.approx(once * versions)


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
def test_activations_are_those_of_one_f_one_b(schedule: str) -> None:
    activations = CATEGORIES.index("activations")
    flushed = predicted("one_f_one_b").memory.by_category[:, activations]
    assert flushed == pytest.approx(predicted(schedule).memory.by_category[:, activations])
    p = predicted(schedule)
    everywhere = memory_peaks(p.program, p.trace).by_category
    assert (p.memory.by_category <= everywhere + 1e-6).all()


def test_without_a_flush_there_is_less_bubble_and_no_end_of_step() -> None:
    flushed, never = predicted("one_f_one_b"), predicted("pipedream_2bw")
    assert never.bubble_fraction < 0.6 * flushed.bubble_fraction
    assert never.step_time < flushed.step_time
    assert never.hardware_flops == pytest.approx(flushed.hardware_flops)


def test_an_all_reduce_per_microbatch_is_what_pipedream_pays() -> None:
    every, once = predicted("pipedream"), predicted("pipedream_2bw")
    assert every.breakdown["dp"] > 4 * once.breakdown["dp"]
    assert every.breakdown["optimizer"] == pytest.approx(8 * once.breakdown["optimizer"], rel=0.05)


def test_tied_embeddings_hold_no_rank_up() -> None:
    p = predicted("pipedream_2bw")
    tied = [n for n in range(p.program.size) if "tied" in p.program.items[p.program.item[n]].name]
    assert p.program.step.max() + 1 == len(tied)
    assert not np.isin(p.program.after, tied).any()


REFUSALS = [
    ({"zero_stage": 3}, "zero_stage = 3", "zero_stage = 2"),
    ({"clip_gradients": True}, "clip_gradients = true", "clip_gradients = false"),
    ({"overlap_gradients": True}, "overlap_gradients = true", "leave overlap_gradients out"),
    ({"zero_stage": 1, "overlap_parameters": True}, "overlap_parameters = true", "leave overlap_parameters out"),
    ({"bucket_size": 1e6}, "overlap_gradients = false", "leave bucket_size out"),
    ({"optimizer_offload": 0.5}, "optimizer_offload = 0.5", "leave optimizer_offload out"),
    ({"chunks_per_rank": 2}, "a rank holds one chunk", "interleaved_1f1b"),
]


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
@pytest.mark.parametrize(("plan", "values", "way"), REFUSALS, ids=lambda x: None)
def test_what_needs_a_flush_is_refused_with_the_reason(schedule: str, plan: dict, values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(workload(16), Plan(pipeline_parallel=4, data_parallel=2, schedule=schedule, **plan), 8)
    assert values in str(caught.value)
    assert way in str(caught.value)


def test_habits_that_need_a_flush_fall_away() -> None:
    plan = Plan(pipeline_parallel=4, data_parallel=2, schedule="pipedream_2bw", framework="megatron_core")
    resolved = resolve(workload(16), plan, 8)
    assert (False, False, False) == (resolved.clip_gradients, resolved.overlap_gradients, resolved.overlap_parameters)
    assert "latency" == resolved.p2p


def test_loss_scaling_checks_each_rank_alone() -> None:
    plan = Plan(pipeline_parallel=4, schedule="pipedream_2bw")
    program = lower(workload(16, "fp16"), plan)
    labels = [
        label for item in program.items if item.name == "update" for table, _ in item.pieces for label in table.label
    ]
    assert "unscale gradients" in labels
    assert not any("norm" in item.name for item in program.items)
    trace = run(program, price(program, load_cluster("dgx_a100", 4)))
    assert trace.makespan > 0
