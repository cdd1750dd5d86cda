"""Every field of a framework profile changes the program, a price or the memory of some job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.simulation import simulate
from simulator.specs import ExtendingSpec
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.profiles import profile

LLAMA = {"model": "llama3_2_1b"}
DROPOUT = {"model": "gpt2_355m", "profile": {"dropout": "true", "attention": '"unfused"'}}
TENSOR = {"plan": {"tensor_parallel": 4, "sequence_parallel": True, "data_parallel": 2}}
PIPELINE = {"plan": {"pipeline_parallel": 4}}
ZERO = {"plan": {"zero_stage": 1}}
FSDP = {"plan": {"zero_stage": 3}}
RING = {"plan": {"context_parallel": 4, "context_parallel_kind": "ring", "attention": "flash2"}}
EXPERTS = {"model": "mixtral_8x7b", "plan": {"expert_parallel": 8, "zero_stage": 1}}
HOST = {"plan": {"zero_stage": 2, "optimizer_offload": 1.0}}
NARROW = {"model": "qwen3_30b_a3b", "precision": "fp8", "plan": {"expert_parallel": 8, "zero_stage": 1}}
FINE_EXPERTS = {"model": "qwen3_30b_a3b", "gpus": 16, "plan": {"expert_parallel": 16, "zero_stage": 1}}
TWO_WAY = {
    "model": "mixtral_8x7b",
    "plan": {"pipeline_parallel": 4, "expert_parallel": 2, "schedule": "dualpipe"},
    "batch": 64,
}
ZERO_BUBBLE = {"plan": {"pipeline_parallel": 4, "schedule": "zb_h2"}}


def switch(job: dict[str, Any]) -> tuple[dict[str, Any], str, str]:
    return job, "false", "true"


FIELDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "attention": ({}, '"unfused"', '"flash2"'),
    "fused_softmax": switch({"profile": {"attention": '"unfused"'}}),
    "fused_bias_activation": switch(LLAMA),
    "fused_residual": switch(DROPOUT),
    "fused_rotary": switch(LLAMA),
    "complex_rotary": switch(LLAMA),
    "scales_rotary": switch({"model": "gpt_oss_20b", "profile": {"fused_rotary": "true"}}),
    "rotary_tables": ({**LLAMA, "profile": {"fused_rotary": "false"}}, "0", "6"),
    "copies_rows_apart": switch({"model": "mixtral_8x7b"}),
    "fuses_permute": switch({"model": "mixtral_8x7b"}),
    "picks_rows": ({"model": "mixtral_8x7b", "profile": {"fuses_permute": "false"}}, '"mask"', '"index"'),
    "expert_loop": ({"model": "mixtral_8x7b"}, '"none"', '"slices"'),
    "grouped_kernel": switch({"model": "mixtral_8x7b", "length": 128}),
    "pads_expert_rows": switch({"model": "mixtral_8x7b", "plan": {"expert_parallel": 2}, "precision": "fp8_block"}),
    "fused_norm": switch(LLAMA),
    "autocast": switch({}),
    "keeps_inner_results": switch({**LLAMA, "profile": {"fused_norm": "true"}}),
    "norms_in_fp32": switch({"profile": {"autocast": "false"}}),
    "measures_accuracy": switch({}),
    "softmax_by_reductions": switch({"profile": {"attention": '"unfused"', "fused_softmax": "true"}}),
    "stacks_saved": switch({}),
    "embeds_by_product": switch({}),
    "recompute_extent": ({"plan": {"recompute": "full"}}, '"layer"', '"until_kept"'),
    "splits_qkv": switch({"profile": {"attention": '"flash2"'}}),
    "fused_cross_entropy": switch({}),
    "in_place_cross_entropy": switch({}),
    "widens_logits": switch({}),
    "torch_loss": switch({}),
    "copies_sequence_parts": switch(TENSOR),
    "pads_sequences": switch({**TENSOR, "length": 1023}),
    "flat_units": switch(FSDP),
    "widens_fused_loss": switch({"profile": {"fused_cross_entropy": "true"}}),
    "updates_in_lists": switch({"batch": 8, "length": 128}),
    "keeps_buckets": switch({}),
    "drops_gradients": switch({"batch": 8}),
    "states_break_places": switch({}),
    "splits_master_weights": switch({}),
    "fused_wgrad_accumulation": switch({}),
    "fused_optimizer": switch({"profile": {"updates_in_lists": "false"}}),
    "dropout": switch({}),
    "repeats_keys": switch(LLAMA | {"profile": {"attention": '"sdpa_2025"'}}),
    "ring_in_fp32": switch(RING),
    "ring_traced": switch(RING),
    "casts_apart": switch({"precision": "fp8"}),
    "expert_exchange": (FINE_EXPERTS, '"all_to_all"', '"once_per_node"'),
    "masks_by_sequence": switch({"model": "glam_64b_64e", "plan": {"expert_parallel": 8}}),
    "exchange_sorts": switch({**NARROW, "profile": {"expert_exchange": '"once_per_node"'}}),
    "fuses_experts": switch({**NARROW, "precision": "mxfp8", "cluster": "gb200_nvl72"}),
    "joined_expert_gate": switch(EXPERTS),
    "weighs_rows_in_fp32": switch(EXPERTS),
    "keeps_values_in_place": switch({"model": "deepseek_v2_lite", "plan": {"expert_parallel": 8, "zero_stage": 1}}),
    "gradient_dtype": ({}, '"fp32"', '"bf16"'),
    "gradient_exchange": ({"plan": {"microbatch_size": 4}}, '"all_reduce"', '"one_process"'),
    "gradients_overlap": switch({}),
    "parameters_overlap": switch(ZERO),
    "bucket_size": ({}, '"1 MiB"', '"400 MiB"'),
    "cycle_time": ({"profile": {"gradients_overlap": "true"}}, '"0 ms"', '"5 ms"'),
    "first_bucket": ({}, '"0 MiB"', '"1 MiB"'),
    "bucket_growth": ({}, "0", "40000000"),
    "picks_masked": switch({"model": "bert_large", "length": 128}),
    "backend": ({}, '"nccl"', '"gloo"'),
    "deals_layers": (PIPELINE, '"evenly"', '"ends_as_layers"'),
    "p2p": (PIPELINE, '"latency"', '"blocking"'),
    "scatters_p2p": switch({"plan": {"tensor_parallel": 2, "pipeline_parallel": 4}}),
    "partitions_activations": switch(
        {"plan": {"tensor_parallel": 2, "pipeline_parallel": 4}, "profile": {"scatters_p2p": "true"}}
    ),
    "tensor_parallel_overlap": switch(TENSOR),
    "fuses_pairs": switch(TWO_WAY),
    "shards_in_master_precision": switch({**FSDP, "profile": {"autocast": "false"}}),
    "fsdp_prefetch": (FSDP, "0", "2"),
    "reshards_after_forward": switch(FSDP),
    "accumulates_unsharded": switch({**FSDP, "batch": 64}),
    "clips_gradients": switch({}),
    "post_validates": switch(ZERO_BUBBLE),
    "vocabulary_multiple": ({}, "1", "128"),
    "recompute": ({}, '"none"', '"full"'),
    "gathers_logits": switch(TENSOR),
    "gathers_by_product": switch({**LLAMA, **TENSOR, "profile": {"joined_gate": "false"}}),
    "sums_by_product": switch(
        {**LLAMA, "plan": {"tensor_parallel": 4, "sequence_parallel": False}, "profile": {"joined_gate": "false"}}
    ),
    "gathers_rotary": switch({**TENSOR, **LLAMA}),
    "copies_attention_output": switch({"profile": {"attention": '"flash2"'}}),
    "keeps_gathered_inputs": switch(TENSOR),
    "divides_checkpoints": switch({"plan": {"tensor_parallel": 4, "data_parallel": 2, "recompute": "full"}}),
    "copies_qkv": switch({"profile": {"attention": '"flash2"'}}),
    "packs_qkv": switch({"profile": {"attention": '"flash2"'}}),
    "layer_wait": ({"plan": {"recompute": "full"}}, '"0 us"', '"300 us"'),
    "keeps_idle_products": switch({"plan": {"recompute": "operators"}, **LLAMA}),
    "copies_gathered": switch(FSDP),
    "keeps_outputs": switch(PIPELINE),
    "receives_ahead": switch(PIPELINE),
    "returns_outputs": switch(PIPELINE),
    "fsdp_root_unit": switch(FSDP),
    "split_keeps_graph": switch(
        {"plan": {"schedule": "zb_interleaved", "chunks_per_rank": 2, "pipeline_parallel": 2}, "batch": 16}
    ),
    "pipeline_keeps_unsharded": switch({"plan": {"zero_stage": 3, "pipeline_parallel": 2}}),
    "keeps_compute_gradients": switch({"plan": {"gradient_dtype": "fp32"}}),
    "flattens_gradients": switch(ZERO),
    "sub_group_size": (
        {**FSDP, "length": 128, "profile": {"flattens_gradients": "true", "gradient_dtype": '"compute"'}},
        "0",
        "1000000",
    ),
    "saves_gathered": switch(FSDP),
    "holds_buckets": switch({"plan": {"zero_stage": 2}}),
    "makes_gradients": switch({**LLAMA, "plan": {"microbatch_size": 2}}),
    "weights_in_experts": switch(EXPERTS),
    "launch_time": ({"length": 128}, '"1 us"', '"9 us"'),
    "operator_time": ({"length": 128}, '"1 us"', '"20 us"'),
    "module_time": ({"length": 128}, '"1 us"', '"60 us"'),
    "weight_gradient_time": ({"length": 128}, '"0 us"', '"60 us"'),
    "split_module_time": ({"length": 128, "plan": {"tensor_parallel": 2}}, '"0 us"', '"100 us"'),
    "cuda_graphs": ({"length": 128}, '"none"', '"full_iteration"'),
    "launch_wait": ({}, '"0 us"', '"20 us"'),
    "message_wait": ({**PIPELINE, "profile": {"p2p": '"blocking"'}}, '"0 us"', '"300 us"'),
    "step_time": ({}, '"1 ms"', '"9 ms"'),
    "fused_host_optimizer": switch(HOST),
    "unbound_host_threads": switch(HOST),
    "offloads_master_weights": switch(HOST),
    "context": ({}, '"1 GiB"', '"2 GiB"'),
    "workspace": ({}, '"64 MiB"', '"128 MiB"'),
    "grouped_workspace": (EXPERTS, '"0 MiB"', '"64 MiB"'),
    "communicator": ({}, '"256 MiB"', '"512 MiB"'),
    "joined_gate": switch(LLAMA),
    "joined_qkv": switch(LLAMA),
    "plain_router": switch(EXPERTS),
    "plain_gate": switch({**LLAMA, "profile": {"fused_bias_activation": "true"}}),
    "norm_sums_apart": switch({"cluster": "dgx_a100"}),
    "reduction_dtype": ({"plan": {"gradient_dtype": "fp32"}}, '"gradient"', '"bf16"'),
    "reduces_whole": switch(ZERO),
    "broadcasts_updates": switch(ZERO),
    "divides_gradients": switch({}),
    "checks_gradients": switch({}),
    "gathers_by_tensor": switch(FSDP),
    "loss_metrics": ({}, "0", "2"),
    "reuse_distance": (
        {"plan": {"zero_stage": 3, "recompute": "full"}, "profile": {"gathers_by_tensor": "true"}},
        "0",
        "1000000000",
    ),
    "gather_bucket": (FSDP, '"0 MiB"', '"8 MiB"'),
    "copies_bucket": ({"plan": {"zero_stage": 3, "shard_size": 2}}, '"0 MiB"', '"64 MiB"'),
    "carries_gathered": switch(FSDP),
    "casts_gathered": switch({**FSDP, "precision": "fp8"}),
    "keeps_tensors_below": ({**FSDP, "profile": {"gathers_by_tensor": "true"}}, "0", "100000"),
    "fetch_time": ({**FSDP, "length": 128}, '"0 us"', '"300 us"'),
    "fetch_slice_time": (
        {
            "model": "mixtral_8x7b",
            **FSDP,
            "length": 128,
            "profile": {"fetch_time": '"300 us"', "expert_loop": '"modules"'},
        },
        '"0 us"',
        '"2.5 us"',
    ),
    "allocator": (
        {"plan": {"recompute": "full", "microbatch_size": 4}, "profile": {"states_break_places": "false"}},
        '"segments"',
        '"none"',
    ),
    "slice_time": (FSDP, '"0 us"', '"7 us"'),
}
"""Field -> a job in which it matters (profile: other keys of the profile), and two values in TOML words."""


def figures(job: dict[str, Any], framework: str) -> tuple[Any, ...]:
    """What a user sees of a job: time and memory, in parts, or why it is refused."""
    work = Workload(
        model=load_model(job.get("model", "gpt2_355m")),
        sequence_length=job.get("length", 1024),
        global_batch_size=job.get("batch", 32),
        precision=job.get("precision", "bf16"),
    )
    plan = Plan(**{"framework": framework, **job.get("plan", {})})
    try:
        p = simulate(work, plan, load_cluster(job.get("cluster", "dgx_h100"), job.get("gpus", 8)))
    except PlanError as refusal:
        return (str(refusal),)
    return p.step_time, p.breakdown, p.memory.by_category.tolist(), p.host_memory, p.reserved(p.fullest)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_profile_has_an_effect(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job, *values = FIELDS[field]
    names = [
        profile(tmp_path, f"{field}_{number}", **{**job.get("profile", {}), field: value})
        for number, value in enumerate(values)
    ]
    one, two = (figures(job, name) for name in names)
    assert one != two


def test_the_list_of_fields_of_a_profile_is_complete() -> None:
    """`supports` is told, and changes no figure (`test_framework_supports.py`)."""
    assert set(Framework.model_fields) - set(ExtendingSpec.model_fields) - {"supports"} == set(FIELDS)


def test_the_name_alone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (figures(FSDP, profile(tmp_path, name)) for name in ("one", "two"))
    assert one == two
