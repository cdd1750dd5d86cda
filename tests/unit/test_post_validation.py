"""Optimizer post-validation: every rank ends its steps on its own, so that a step takes the span of a rank, not of all."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from simulator.engine import run
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import resolve
from simulator.lowering.abstract import abstract_program
from simulator.lowering.steps.ordered import ordered
from simulator.plan.plan import Plan
from simulator.program.program import COMPUTE
from simulator.program.spec import verify
from simulator.report.prediction import Prediction
from simulator.schedules import SCHEDULES, Shape
from simulator.simulation import simulate
from simulator.studies.schedule_figures import schedule_figures
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

WORK = Workload(model=load_model("gpt3_1_3b"), sequence_length=1024, global_batch_size=32)


@functools.cache
def predicted(schedule: str, engine: str = "compiled", **plan: object) -> Prediction:
    chunks = 2 if schedule in ("zbv", "v_half") else 1
    chosen = Plan(pipeline_parallel=4, data_parallel=2, chunks_per_rank=chunks, schedule=schedule, **plan)  # type: ignore[arg-type]
    return simulate(WORK, chosen, load_cluster("dgx_a100", 8), engine)


@pytest.mark.parametrize(("name", "v"), [("zb_h1", 1), ("zb_h2", 1), ("zbv", 2), ("1f1b", 1)])
def test_in_abstract_time_steps_follow_each_other_after_the_span_of_a_rank(name: str, v: int) -> None:
    """The longest span of a rank (Zero Bubble's cost), where the makespan of one step has a slope at either end more."""
    shape, steps = Shape(4, 8, v), 4
    columns = ordered(SCHEDULES.get(name), shape, steps)
    program, prices = abstract_program(*columns, forward=1.0, input_grad=1.0, weight_grad=1.0)
    verify(program)
    trace = run(program, prices)
    last = (program.kind == COMPUTE) & (program.rank == 0)
    ends = [trace.end[last & (program.microbatch // 8 == k)].max() for k in range(steps)]
    one = schedule_figures(name, 4, 8, v)
    assert np.diff(ends)[1:] == pytest.approx(one.longest_rank_span)
    assert one.longest_rank_span <= one.makespan


@pytest.mark.parametrize(("schedule", "left"), [("zb_h2", 0.97), ("zbv", 1.02)])
def test_a_real_step_saves_its_slope_and_holds_no_more(schedule: str, left: float) -> None:
    """ZB-V has nothing to save here: the head stands on rank 0, which is never done before the others."""
    waits, goes_on = predicted(schedule, post_validation=False), predicted(schedule, post_validation=True)
    assert goes_on.step_time < left * waits.step_time
    assert goes_on.step_time == pytest.approx(sum(goes_on.breakdown.values()), rel=1e-9)
    assert goes_on.memory.by_category == pytest.approx(waits.memory.by_category, rel=0.02)
    assert goes_on.hardware_flops == pytest.approx(waits.hardware_flops)
    assert not any("all_reduce gradient norm" == item.name for item in goes_on.program.items)


def test_one_f_one_b_has_next_to_nothing_to_gain() -> None:
    waits, goes_on = predicted("one_f_one_b", post_validation=False), predicted("one_f_one_b", post_validation=True)
    assert goes_on.step_time == pytest.approx(waits.step_time, rel=0.05)


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("schedule", ["zb_h1", "zbv", "gpipe"])
def test_both_engines_agree(schedule: str, zero: int) -> None:
    a, b = (predicted(schedule, engine, post_validation=True, zero_stage=zero) for engine in ("compiled", "simpy"))
    assert a.step_time == pytest.approx(b.step_time, rel=1e-9)


def test_it_is_the_habit_of_the_zero_bubble_fork_with_a_split_backward() -> None:
    for schedule, habit in (("zb_h2", True), ("one_f_one_b", False)):
        resolved = resolve(WORK, Plan(pipeline_parallel=4, schedule=schedule, framework="megatron_zero_bubble"), 4)
        assert habit == resolved.post_validation
    told = Plan(pipeline_parallel=4, schedule="zb_h2", framework="megatron_zero_bubble", post_validation=False)
    assert not resolve(WORK, told, 4).post_validation


REFUSALS = [
    ({"pipeline_parallel": 1}, "pipeline_parallel = 1", "leave post_validation out"),
    ({"schedule": "pipedream"}, "never flushes", "leave post_validation out"),
    ({"schedule": "chimera"}, "schedule = 'chimera'", "schedule = 'zbv'"),
    ({"zero_stage": 3}, "zero_stage = 3", "zero_stage = 2"),
    ({"overlap_gradients": True}, "overlap_gradients or", "leave overlap_gradients"),
]


@pytest.mark.parametrize(("plan", "values", "way"), REFUSALS, ids=lambda x: None)
def test_what_it_cannot_go_with_is_refused(plan: dict, values: str, way: str) -> None:
    base = {"pipeline_parallel": 4, "schedule": "zb_h1", "post_validation": True}
    with pytest.raises(PlanError) as caught:
        resolve(WORK, Plan(**{**base, **plan}), 8)
    assert values in str(caught.value)
    assert way in str(caught.value)
