"""A Hugging Face config.json becomes a model, exactly; what cannot be read is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import SpecError
from simulator.importers.hugging_face import model_from_config
from simulator.importers.jobs import import_file
from simulator.specs import validate_spec
from simulator.workload.model import Model, load_model
from tests.command import Dtsim

LLAMA3 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


def read(tmp_path: Path, config: Any) -> Model:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return validate_spec(model_from_config(path), Model, "test")


@pytest.mark.parametrize(("config", "name"), [(LLAMA3, "llama3_8b"), (GPT2, "gpt2_124m")])
def test_parameters_are_those_of_the_shipped_model(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    assert load_model(name).parameters == read(tmp_path, config).parameters


def test_an_activation_function_that_transformers_writes_out_is_one_of_the_model(tmp_path: Path) -> None:
    """GPT-2's is unless its file says otherwise; a name with a kernel is none, and neither is that of a gate."""
    told = ({}, {"activation_function": "gelu_new"}, {"activation_function": "gelu_pytorch_tanh"})
    assert ["gelu_new", "gelu_new", ""] == [read(tmp_path, GPT2 | more).activation for more in told]
    assert "" == read(tmp_path, LLAMA3 | {"hidden_act": "gelu_new"}).activation


def test_qwen2_has_biases_on_query_key_and_value_only(tmp_path: Path) -> None:
    qwen = read(tmp_path, LLAMA3 | {"model_type": "qwen2"})
    per_layer = (32 + 2 * 8) * 128
    assert load_model("llama3_8b").parameters + 32 * per_layer == qwen.parameters
    assert not qwen.linear_bias


def test_head_dim_may_differ_from_hidden_over_heads(tmp_path: Path) -> None:
    assert 96 == read(tmp_path, LLAMA3 | {"model_type": "mistral", "head_dim": 96}).head_dim


def test_sliding_windows_are_read_from_the_file_or_known_of_the_family(tmp_path: Path) -> None:
    mistral = LLAMA3 | {"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": 4096}
    read_one = read(tmp_path, mistral)
    assert (4096, {"window layer"}, 32768) == (read_one.window, set(read_one.layer_kinds), read_one.sequence_length)
    assert 0 == read(tmp_path, mistral | {"sliding_window": None}).window
    assert 0 == read(tmp_path, mistral | {"model_type": "qwen2", "use_sliding_window": False}).window
    late = mistral | {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28}
    assert 4 == read(tmp_path, late).layer_kinds.count("window layer")
    listed = mistral | {"layer_types": ["sliding_attention", "full_attention"] * 16}
    assert ("window", "full") == read(tmp_path, listed).mixers
    with pytest.raises(SpecError, match="linear_attention"):
        read(tmp_path, mistral | {"layer_types": ["linear_attention"] * 32})


SHARED = {"max_position_embeddings": 4096, "tie_word_embeddings": False}
DEEPSEEK = SHARED | {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "num_nextn_predict_layers": 1,
}  # fmt: skip
GPT_OSS = SHARED | {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "vocab_size": 201088, "sliding_window": 128, "attention_bias": True,
}  # fmt: skip
QWEN3 = SHARED | {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936, "sliding_window": None, "decoder_sparse_step": 1,
}  # fmt: skip
GEMMA2 = SHARED | {
    "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA4 = SHARED | {
    "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 128,
    "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "vocab_size": 202048, "attention_chunk_size": 8192,
}  # fmt: skip
QWEN3_NEXT = QWEN3 | {
    "model_type": "qwen3_next", "intermediate_size": 5120, "moe_intermediate_size": 512, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512, "num_experts_per_tok": 10,
    "shared_expert_intermediate_size": 512, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4, "num_nextn_predict_layers": 1,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 12,
}  # fmt: skip
MAMBA2 = {
    "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50288, "state_size": 128, "num_heads": 80,
    "head_dim": 64, "n_groups": 1, "expand": 2, "conv_kernel": 4, "tie_word_embeddings": True,
}  # fmt: skip
NEMOTRON_H = SHARED | {
    "model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 52,
    "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128, "vocab_size": 131072,
    "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 224, "patch_size": 16, "num_channels": 3,
}  # fmt: skip
T5 = {
    "model_type": "t5",
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_layers": 12,
    "num_heads": 12,
    "vocab_size": 32128,
}
BLOOM = {"model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880}
FALCON = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024,
          "multi_query": True, "bias": False}  # fmt: skip
OPT = {"model_type": "opt", "hidden_size": 4096, "ffn_dim": 16384, "num_hidden_layers": 32, "num_attention_heads": 32,
       "vocab_size": 50272, "max_position_embeddings": 2048}  # fmt: skip
NEOX = {"model_type": "gpt_neox", "hidden_size": 5120, "intermediate_size": 20480, "num_hidden_layers": 36,
        "num_attention_heads": 40, "vocab_size": 50688, "max_position_embeddings": 2048}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (DEEPSEEK, "deepseek_v3"),
        (GPT_OSS, "gpt_oss_20b"),
        (QWEN3, "qwen3_30b_a3b"),
        (GEMMA2, "gemma2_9b"),
        (LLAMA4, "llama4_maverick"),
        (BERT, "bert_large"),
        (VIT, "vit_l_16"),
        (T5, "t5_base"),
        (QWEN3_NEXT, "qwen3_next_80b_a3b"),
        (NEMOTRON_H, "nemotron_h_8b"),
        (MAMBA2, "mamba2_2_7b"),
        (BLOOM, "bloom_7_1b"),
        (FALCON, "falcon_7b"),
        (OPT, "opt_6_7b"),
        (NEOX, "pythia_12b"),
    ],
)
def test_every_family_comes_out_as_the_shipped_model(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    made, ours = read(tmp_path, config), load_model(name)
    assert (ours.parameters, ours.mtp_parameters) == (made.parameters, made.mtp_parameters)
    assert (ours.layer_kinds, ours.window, ours.architecture) == (made.layer_kinds, made.window, made.architecture)


DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352, "max_seq_len": 32768,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}, "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip


def test_sizes_in_tables_of_their_own_and_what_else_stands_there(tmp_path: Path) -> None:
    """DBRX is published with 132 billion parameters, of which 36 billion work on a token (databricks.com, 27 March 2024)."""
    model = read(tmp_path, DBRX)
    assert (132, 36) == (round(model.parameters / 1e9), round(model.active_parameters / 1e9))
    found = import_file(tmp_path / "config.json")
    assert ["attn_config.clip_qkv: 8"] == [line.text for line in found.not_understood]
    broken = DBRX | {"ffn_config": 3}
    with pytest.raises(SpecError, match="ffn_config: expected a table"):
        read(tmp_path, broken)


def test_the_language_model_inside_another_is_read(tmp_path: Path) -> None:
    inside = {"model_type": "gemma3", "text_config": GEMMA2 | {"model_type": "gemma3_text", "sliding_window": 1024}}
    assert (1024, True) == ((model := read(tmp_path, inside)).window, model.qk_norm)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA3 | {"model_type": "mamba"}, "known (nearest: mamba2, "),
        ({"model_type": "llamma", "n_dim": 4096}, "(nearest: llama, "),
        ({"model_type": "llamma", "n_dim": 4096}, "it has no hidden_size, num_hidden_layers, num_attention_heads, "),
        ({}, "model_type"),
        ([1, 2], "one JSON object"),
        ('{"model_type": ', "no JSON"),
        ("[" * 100_000, "no JSON"),
        (LLAMA3 | {"hidden_size": 0}, "hidden_size"),
        (LLAMA3 | {"hidden_size": "4096"}, "hidden_size"),
        (LLAMA3 | {"num_hidden_layers": 10**9}, "layers"),
        (LLAMA3 | {"num_hidden_layers": True}, "num_hidden_layers"),
        (LLAMA3 | {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({k: v for k, v in LLAMA3.items() if k != "vocab_size"}, "vocab_size"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, config: Any, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        read(tmp_path, config)
    assert said in str(refused.value)


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(SpecError, match=str(path)):
            model_from_config(path)


@pytest.mark.parametrize(
    ("stated", "scale"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 32.0}}, 1.3466),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 32.0, "attention_factor": 1.25}}, 1.25),
        ({"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}}, 1.0),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 1.0),
        ({}, 1.0),
    ],
)
def test_yarn_scales_the_rotary_embedding(tmp_path: Path, stated: dict[str, object], scale: float) -> None:
    """transformers, modeling_rope_utils.py: 0.1 ln factor + 1, unless the file says how much, or scales both parts alike."""
    assert scale == read(tmp_path, GPT_OSS | stated).rotary_scale


def test_a_factor_of_yarn_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="factor: expected a number above 0, got many"):
        read(tmp_path, GPT_OSS | {"rope_scaling": {"rope_type": "yarn", "factor": "many"}})


def test_a_job_written_of_a_config_has_the_plan_that_the_config_runs_with(here: Path, dtsim: Dtsim) -> None:
    Path("config.json").write_text(json.dumps(LLAMA3))
    dtsim("import", "config.json", "--cluster", "h100_x8", "-o", "job.toml")
    answers = []
    for words in (
        ["job.toml"],
        ["--model", "config.json", "--cluster", "h100_x8"],
        ["config.json", "--cluster", "h100_x8"],
    ):
        answers.append(json.loads(dtsim("run", *words, "--json")[1]))
    assert answers[0]["fits"]
    assert answers[0]["step_time_s"] == answers[1]["step_time_s"] == answers[2]["step_time_s"]
    assert answers[0]["peak_memory_bytes"] == answers[1]["peak_memory_bytes"] == answers[2]["peak_memory_bytes"]
