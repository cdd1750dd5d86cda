"""Plans that are refused by the block: every one of them is refused when it is asked alone, and none is missed."""

from __future__ import annotations

import pytest

from simulator.job import job_from_names
from simulator.lowering.resolve.facts import Facts
from simulator.plan.plan import Plan
from simulator.search import deciding
from simulator.search.candidate import look
from simulator.search.deciding import deciding_fields
from simulator.search.run import Run
from simulator.search.space import Space, make_space, read_ranges

DENSE = [
    "tensor_parallel=1,3,8,16",
    "sequence_parallel=false,true",
    "pipeline_parallel=1,2,8,64",
    "chunks_per_rank=1,2",
    "schedule=one_f_one_b,zb_h1,chimera",
    "zero_stage=0,2,3",
    "overlap_parameters=false,true",
    "recompute=none,full",
]
SPARSE = [
    "tensor_parallel=1,2,8",
    "sequence_parallel=false,true",
    "expert_parallel=1,3,8,64",
    "expert_tensor_parallel=1,2",
    "expert_exchange=all_to_all,once_per_node",
    "microbatch_size=1,3",
    "cuda_graphs=none,full_iteration",
    "recompute=selective,full",
    "recompute_modules=['moe_act'],['mlp']",
]
DEALT = [
    "tensor_parallel=1,3,8",
    "pipeline_parallel=1,2,4,64",
    "chunks_per_rank=1,2",
    "microbatch_size=1,4",
    "zero_stage=0,2,3",
    "overlap_parameters=false,true",
    "recompute=none,full",
    "layer_split=balanced,timed,fitted",
]
SPACES = {"dense": ("gpt3_6_7b", DENSE), "with experts": ("mixtral_8x7b", SPARSE), "dealt": ("gpt3_6_7b", DEALT)}


def space_of(name: str, offered: bool = False) -> Space:
    model, ranges = SPACES[name]
    job = job_from_names(model, "dgx_h100", ["cluster.gpus=64", "workload.global_batch_size=128"])
    return make_space(job, {} if offered else read_ranges(ranges), {})


@pytest.mark.parametrize(
    ("name", "offered"), [("dense", False), ("with experts", False), ("dealt", False), ("dense", True)]
)
def test_plans_refused_together_are_those_refused_alone(name: str, offered: bool) -> None:
    space = space_of(name, offered)
    numbers = range(0, space.size, max(1, space.size // 1500))
    run = Run(space=space, objective="step_time", probability=0.0)
    looked = {one.point.number for one in run.looks(numbers, every=True)}
    assert looked
    assert len(run.refused) > 100
    for number in numbers:
        alone = look(space, space.at(number), "step_time", None).job is None
        assert (number in run.refused, number in looked) == (alone, not alone)


@pytest.mark.parametrize("split", ["timed", "fitted"])
def test_plans_whose_layers_depend_on_them_are_refused_by_the_block_too(split: str) -> None:
    space = space_of("dealt")
    for values, said, fields in (
        ({"tensor_parallel": 3}, "must equal the world size", {"plan.tensor_parallel"}),
        ({"zero_stage": 2}, "there is 1 chunk", {"plan.pipeline_parallel", "plan.layer_split"}),
    ):
        named = {f"plan.{field}": value for field, value in values.items()}
        point = space.at(space.number(dict(space.at(0).values) | {"plan.layer_split": split} | named))
        refusal = look(space, point, "step_time").refusal
        assert said in refusal
        assert fields <= deciding_fields(space, point, refusal) < {*space.ranges}


def test_a_rule_is_about_the_fields_that_it_asks_for() -> None:
    space = space_of("dense")
    values = dict(space.at(0).values) | {"plan.tensor_parallel": 1, "plan.sequence_parallel": True}
    point = space.at(space.number(values))
    refusal = look(space, point, "step_time").refusal
    assert "sequence_parallel splits norms" in refusal
    assert deciding_fields(space, point, refusal) == {"plan.tensor_parallel", "plan.sequence_parallel"}


def test_what_takes_a_plan_as_a_whole_takes_every_field() -> None:
    for whole in (hash, lambda plan: plan.model_dump(), lambda plan: plan == Plan(), lambda plan: plan.model_copy()):
        plan = deciding._watched(Plan(tensor_parallel=2))
        whole(plan)
        assert deciding._seen_of(plan) == set(Plan.model_fields)


def test_a_field_that_nobody_notes_would_refuse_plans_that_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would prove nothing."""
    space = space_of("dense")
    monkeypatch.setattr(deciding, "_NAMES", deciding._NAMES - {"tensor_parallel"})
    run = Run(space=space, objective="step_time", probability=0.0)
    for _ in run.looks(range(space.size), every=True):
        pass
    assert any(look(space, space.at(number), "step_time", None).job is not None for number in run.refused)


def test_facts_are_made_when_they_are_asked_for() -> None:
    job = job_from_names("gpt3_6_7b", "dgx_h100", ["cluster.gpus=64"])
    facts = Facts(job.workload, Plan(tensor_parallel=48), 64, "dgx_h100")
    assert facts.schedule.name == "one_f_one_b"
