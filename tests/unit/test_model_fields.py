"""Every field of a model changes its parameters, the time or the memory of a job; the descriptive ones are named."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.simulation import simulate
from simulator.specs import NamedSpec
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload

DESCRIPTIVE = {"family", "parameters_published"}
"""What authors say of a model beside its shape: shown and compared with, never computed with."""

LLAMA, GPT, MOE, LATENT = "llama3_2_1b", "gpt2_355m", "mixtral_8x7b", "deepseek_v2_lite"
BERT, VISION, T5, HYBRID, QWEN = "bert_large", "vit_l_16", "t5_large", "qwen3_next_80b_a3b", "qwen3_30b_a3b"
RESNET = "resnet50"
MAMBA = {"mixers": ("mamba2", "full"), "ssm_heads": 32, "ssm_head_dim": 64, "ssm_groups": 4, "ssm_state": 64}
MAMBA |= {"conv_width": 4}
GROUPS = {"expert_groups": 8, "groups_per_token": 2}
APART = {"expert_parallel": 16, "expert_exchange": "once_per_node", "zero_stage": 1}

FIELDS: dict[str, tuple[str, dict[str, Any], Any, Any, dict[str, Any]]] = {
    "architecture": (BERT, {"pooler": False, "head_transform": False, "token_types": 0}, "encoder", "transformer", {}),
    "layers": (GPT, {}, 24, 12, {}),
    "hidden": (GPT, {}, 1024, 2048, {}),
    "heads": (GPT, {"kv_heads": 16, "head_dim": 64}, 16, 32, {}),
    "kv_heads": (LLAMA, {}, 8, 4, {}),
    "head_dim": (LLAMA, {}, 64, 128, {}),
    "ffn": (GPT, {}, 4096, 2048, {}),
    "gated_mlp": (GPT, {}, False, True, {}),
    "clamped_gate": (MOE, {}, False, True, {}),
    "activation": (GPT, {}, "", "gelu_new", {"framework": "pytorch_ddp"}),
    "norm": (GPT, {}, "layer_norm", "rms_norm", {}),
    "positions": (LLAMA, {}, "rotary", "alibi", {}),
    "rotary_share": (LLAMA, {}, 1.0, 0.25, {"framework": "pytorch_fsdp"}),
    "rotary_scale": (LLAMA, {}, 1.0, 1.35, {"framework": "megatron_core"}),
    "tied_embeddings": (GPT, {}, True, False, {}),
    "vocabulary": (GPT, {}, 50257, 32000, {}),
    "sequence_length": (GPT, {}, 1024, 2048, {}),
    "linear_bias": (GPT, {}, True, False, {}),
    "qkv_bias": (GPT, {}, True, False, {}),
    "experts": (MOE, {}, 8, 16, {}),
    "experts_per_token": (MOE, {}, 1, 2, {}),
    "expert_ffn": (MOE, {}, 14336, 7168, {}),
    "shared_expert_ffn": (MOE, {}, 0, 4096, {}),
    "dense_layers": (MOE, {}, 0, 2, {}),
    "moe_every": (MOE, {}, 1, 2, {}),
    "attention": (LATENT, {}, None, None, {}),
    "q_lora_rank": (LATENT, {}, 0, 512, {}),
    "kv_lora_rank": (LATENT, {}, 512, 256, {}),
    "qk_nope_head_dim": (LATENT, {"head_dim": 192}, 128, None, {}),
    "qk_rope_head_dim": (LATENT, {"head_dim": 192}, 64, None, {}),
    "v_head_dim": (LATENT, {}, 128, 64, {}),
    "window": (LLAMA, {}, 128, 0, {}),
    "mixers": (LLAMA, {"window": 128}, ("window",), ("window", "full"), {}),
    "mlps": (LLAMA, {}, (), (True, False), {}),
    "qk_norm": (LLAMA, {}, False, True, {}),
    "post_norms": (LLAMA, {}, False, True, {}),
    "mtp_layers": (LLAMA, {}, 0, 1, {}),
    "ssm_heads": (LLAMA, MAMBA, 32, 16, {}),
    "ssm_head_dim": (LLAMA, MAMBA, 64, 128, {}),
    "ssm_groups": (LLAMA, MAMBA, 4, 8, {}),
    "ssm_state": (LLAMA, MAMBA, 64, 128, {}),
    "conv_width": (LLAMA, MAMBA, 4, 8, {}),
    "attention_gate": (LLAMA, {}, False, True, {}),
    "expert_groups": (QWEN, GROUPS, 8, 16, APART),
    "groups_per_token": (QWEN, GROUPS, 2, 4, APART),
    "capacity_factor": (MOE, {}, 0.0, 2.0, {"expert_parallel": 8}),
    "token_types": (BERT, {}, 2, 0, {}),
    "head_transform": (BERT, {}, True, False, {}),
    "pooler": (BERT, {}, True, False, {}),
    "patch_inputs": (VISION, {}, 768, 588, {}),
    "encoder_layers": (T5, {}, 24, 12, {}),
    "target_length": (T5, {}, 114, 64, {}),
    "lora_rank": (LLAMA, {}, 0, 16, {}),
    "lora_modules": (LLAMA, {"lora_rank": 16}, ("query", "value"), ("up", "down"), {}),
    "lora_dropout": (LLAMA, {"lora_rank": 16}, False, True, {}),
    "frozen_format": (LLAMA, {"lora_rank": 16}, "", "nf4", {}),
    "network": (RESNET, {}, None, None, {"microbatch_size": 4}),
}
"""Field -> (a model, other fields, two values, settings of the plan); None: what belongs together changes together."""
TOGETHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attention": (
        {},
        {"attention": "standard", "kv_lora_rank": 0, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0},
    ),
    "network": ({}, {"network": {**load_model(RESNET).model_dump()["network"], "image": (3, 256, 256)}}),
    "qk_nope_head_dim": ({}, {"qk_nope_head_dim": 64, "head_dim": 128}),
    "qk_rope_head_dim": ({}, {"qk_rope_head_dim": 32, "head_dim": 160}),
}


def figures(name: str, plan: dict[str, Any], **changes: Any) -> tuple[Any, ...]:
    """Time and memory of a job with a changed model, in parts."""
    model = Model.model_validate(load_model(name).model_dump() | changes)
    length = min(512, model.sequence_length)
    world = 16 if plan.get("expert_parallel", 1) == 16 else 8
    work = Workload(model=model, sequence_length=length, global_batch_size=32)
    p = simulate(work, Plan(**plan), load_cluster("dgx_h100", world))
    return p.step_time, p.breakdown, p.memory.by_category.tolist()


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_model_has_an_effect(field: str) -> None:
    name, others, first, second, plan = FIELDS[field]
    values = TOGETHER.get(field) or ({field: first}, {field: second})
    one, two = (figures(name, plan, **{**others, **value}) for value in values)
    assert one != two


@pytest.mark.parametrize("field", ["qkv_bias", "qk_norm", "attention_gate"])
def test_fields_of_standard_attention_are_refused_with_latent(field: str) -> None:
    with pytest.raises(ValidationError, match=f"{field} is modelled with attention"):
        Model.model_validate(load_model(LATENT).model_dump() | {field: True})


@pytest.mark.parametrize("name", [GPT, LATENT])
def test_a_share_of_rotary_positions_is_refused_where_there_are_none(name: str) -> None:
    with pytest.raises(ValidationError, match=r"rotary_share = 0\.5 belongs to"):
        Model.model_validate(load_model(name).model_dump() | {"rotary_share": 0.5})


def test_scaled_rotary_positions_are_refused_where_there_are_none() -> None:
    with pytest.raises(ValidationError, match=r"rotary_scale = 1\.3 belongs to"):
        Model.model_validate(load_model(GPT).model_dump() | {"rotary_scale": 1.3})


@pytest.mark.parametrize(("linear", "queries"), [(False, True), (True, False)])
def test_a_rank_alone_holds_the_parameters_of_the_model(linear: bool, queries: bool) -> None:
    """Biases of queries, keys and values apart from those of other layers, in the program as in the count."""
    model = Model.model_validate(load_model("gpt3_125m").model_dump() | {"linear_bias": linear, "qkv_bias": queries})
    work = Workload(model=model, sequence_length=512, global_batch_size=8)
    program = lower(work, Plan(framework="pytorch_ddp"), 8)
    (weights,) = (t.bytes for t in program.resident[0].tensors if t.name == "weights")
    assert weights == 4 * model.parameters  # under autocast


@pytest.mark.parametrize("field", sorted(DESCRIPTIVE))
def test_what_only_describes_changes_nothing(field: str) -> None:
    value = {"family": "other", "parameters_published": 1e9}[field]
    assert figures(GPT, {}) == figures(GPT, {}, **{field: value})


def test_the_list_of_fields_of_a_model_is_complete() -> None:
    assert set(Model.model_fields) - set(NamedSpec.model_fields) == set(FIELDS) | DESCRIPTIVE
