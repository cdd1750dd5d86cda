"""A plan is resolved or refused with the rule, the values and the nearest plan that works."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from simulator.errors import PlanError, UnknownNameError
from simulator.lowering import resolve
from simulator.plan.plan import Plan
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

GPT = Workload(model=load_model("gpt3_175b"), sequence_length=2048, global_batch_size=64)
MIXTRAL = Workload(model=load_model("mixtral_8x7b"), sequence_length=2048, global_batch_size=72)
LLAMA = Workload(model=load_model("llama3_8b"), sequence_length=8192, global_batch_size=64)


REFUSALS = [
    (
        GPT,
        {"tensor_parallel": 8, "pipeline_parallel": 4, "data_parallel": 7},
        256,
        "8 x 1 x 4 x 7 = 224",
        "data_parallel = 8",
    ),
    (GPT, {"tensor_parallel": 7}, 63, "heads, but 96 / 7", "tensor_parallel = 6"),
    (GPT, {"microbatch_size": 3}, 8, "64 / (8 x 3)", "global_batch_size = 72"),
    (GPT, {"sequence_parallel": True}, 8, "tensor_parallel = 1", "sequence_parallel = false"),
    (GPT, {"pipeline_parallel": 64, "chunks_per_rank": 2}, 64, "96 layers", "pipeline_parallel = 48"),
    (
        replace(GPT, precision="fp32"),
        {"gradient_dtype": "bf16"},
        8,
        "'fp32' has none",
        "leave gradient_dtype out",
    ),
    (
        replace(GPT, precision="bf16_true"),
        {"gradient_dtype": "fp32"},
        8,
        "'bf16_true' has none",
        "leave gradient_dtype out",
    ),
    (GPT, {"layer_split": (96,)}, 8, "there is 1 chunk", "leave layer_split out"),
    (GPT, {"rank_order": ("pp", "tp", "dp")}, 8, "1 of the axes has more than one rank", "leave rank_order out"),
    (GPT, {"rank_order": ("pp", "tp", "dp")}, 1, "0 of the axes has more than one rank", "leave rank_order out"),
    (GPT, {"layer_split": (48, 47), "pipeline_parallel": 2}, 2, "sum to 95", "leave layer_split out"),
    (GPT, {"zero_stage": 1}, 1, "data_parallel = 1", "zero_stage = 0"),
    (GPT, {"bucket_size": 1e6, "framework": "megatron_lm"}, 8, "overlap_gradients = false", "leave bucket_size out"),
    (GPT, {"overlap_gradients": True, "zero_stage": 3}, 8, "zero_stage = 3", "leave overlap_gradients out"),
    (GPT, {"overlap_gradients": True}, 1, "data_parallel = 1", "leave out overlap_gradients"),
    (GPT, {"overlap_tensor_parallel": False}, 8, "tensor_parallel = 1", "leave overlap_tensor_parallel out"),
    (GPT, {"overlap_parameters": True}, 8, "zero_stage = 0", "leave overlap_parameters out"),
    (GPT, {"fsdp_prefetch": 2}, 8, "zero_stage = 0", "zero_stage = 3"),
    (GPT, {"p2p": "blocking"}, 8, "pipeline_parallel = 1", "leave p2p out"),
    (GPT, {"schedule": "chimera", "pipeline_parallel": 4, "zero_stage": 2}, 4, "data_parallel = 1", "zero_stage = 1"),
    (
        GPT,
        {"schedule": "chimera", "pipeline_parallel": 4, "zero_stage": 1, "overlap_parameters": True},
        8,
        "'chimera'",
        "leave overlap_parameters out",
    ),
    (GPT, {"schedule": "chimera", "pipeline_parallel": 3}, 3, "ranks=3", "ranks=2"),
    (GPT, {"context_parallel_kind": "ring"}, 8, "context_parallel = 1", "leave it out"),
    (GPT, {"context_parallel": 3}, 3, "2048 / (2 x 3)", "sequence_length = 2046"),
    (LLAMA, {"context_parallel": 16, "context_parallel_kind": "ulysses"}, 16, "8 / (1 x 16)", "'ring'"),
    (GPT, {"expert_parallel": 2}, 8, "is dense", "leave expert_parallel out"),
    (MIXTRAL, {"expert_parallel": 3}, 9, "experts, but 8 / 3", "expert_parallel = 2"),
    (MIXTRAL, {"expert_parallel": 8}, 4, "of dp 4 from the inside", "expert_parallel = 4"),
    (MIXTRAL, {"tensor_parallel": 2, "expert_parallel": 2}, 8, "sequence_parallel = false", "sequence_parallel = true"),
    (MIXTRAL, {"expert_tensor_parallel": 1}, 8, "tensor_parallel = 1", "leave expert_tensor_parallel out"),
    (
        MIXTRAL,
        {"tensor_parallel": 4, "expert_tensor_parallel": 2},
        8,
        "expert_tensor_parallel = 2",
        "leave expert_tensor",
    ),
    (MIXTRAL, {"expert_exchange": "once_per_node"}, 8, "expert_parallel = 1", "leave expert_exchange out"),
    (MIXTRAL, {"expert_imbalance": 1.5}, 8, "expert_parallel = 1", "expert_parallel > 1"),
    (GPT, {"rank_order": ("tp", "tp", "pp")}, 8, "['tp', 'tp', 'pp']", "['tp', 'dp', 'pp']"),
]


@pytest.mark.parametrize(("workload", "plan", "world", "values", "way"), REFUSALS, ids=lambda x: None)
def test_refused_with_values_and_way_out(workload: Workload, plan: dict, world: int, values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(workload, Plan(**plan), world)
    assert values in str(caught.value)
    assert way in str(caught.value)


def test_the_nearest_plan_works() -> None:
    with pytest.raises(PlanError) as caught:
        resolve(GPT, Plan(tensor_parallel=8, pipeline_parallel=6), 100)
    found = dict(re.findall(r"(\w+_parallel) = (\d+)", str(caught.value)))
    assert resolve(GPT, Plan(**{k: int(v) for k, v in found.items()}, microbatch_size=1), 100)


def test_too_many_actions_are_refused_before_any_row_is_made() -> None:
    many = Workload(model=GPT.model, sequence_length=2048, global_batch_size=10**8)
    with pytest.raises(PlanError, match="larger microbatch_size"):
        resolve(many, Plan(pipeline_parallel=8), 8)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="chimera"):
        resolve(GPT, Plan(schedule="chimaera", pipeline_parallel=4), 4)
    with pytest.raises(UnknownNameError, match="megatron_core"):
        resolve(GPT, Plan(framework="megatron_cor"), 4)


def test_the_frameworks_habits_fill_what_the_plan_leaves_open() -> None:
    resolved = resolve(LLAMA, Plan(framework="torchtitan", zero_stage=3), 8)
    assert ("operators", True, 8, "fp32") == (
        resolved.recompute,
        resolved.reshard_after_forward,
        resolved.data_parallel,
        resolved.gradient_dtype,
    )


def test_vocabulary_is_padded_by_the_framework() -> None:
    gpt2 = Workload(model=load_model("gpt2_124m"), sequence_length=1024, global_batch_size=8)
    assert 50688 == resolve(gpt2, Plan(tensor_parallel=4, framework="megatron_lm"), 8).vocabulary  # multiple of 128 x 4
    assert 50257 == resolve(gpt2, Plan(framework="pytorch_ddp"), 8).vocabulary
