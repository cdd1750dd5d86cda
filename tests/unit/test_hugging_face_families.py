"""Families of Hugging Face models whose files name their sizes in their own way come out with the parameters they are published with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import SpecError
from simulator.importers.hugging_face import model_from_config
from simulator.importers.jobs import import_file
from simulator.specs import validate_spec
from simulator.workload.model import Model

PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "Qwen-7B": (7_721_324_544, {
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "model_type": "qwen", "hidden_size": 4096, "intermediate_size":
        22016, "num_hidden_layers": 32, "num_attention_heads": 32, "kv_channels": 128, "vocab_size": 151936, "seq_length": 8192,
        "no_bias": True
    }),
    "chatglm3-6b": (6_243_584_000, {
        "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32, "multi_query_attention": True,
        "multi_query_group_num": 2, "kv_channels": 128, "ffn_hidden_size": 13696, "padded_vocab_size": 65024, "seq_length": 8192,
        "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "tie_word_embeddings": False
    }),
    "glm-4-9b": (9_399_951_360, {
        "model_type": "chatglm", "num_layers": 40, "hidden_size": 4096, "num_attention_heads": 32, "multi_query_attention": True,
        "multi_query_group_num": 2, "kv_channels": 128, "ffn_hidden_size": 13696, "padded_vocab_size": 151552, "seq_length": 8192,
        "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True
    }),
    "Baichuan2-7B": (7_505_973_248, {
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "model_type": "baichuan", "hidden_size": 4096, "intermediate_size":
        11008, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 125696
    }),
    "Baichuan2-13B": (13_896_668_160, {
        "model_type": "baichuan", "tie_word_embeddings": False, "model_max_length": 4096, "hidden_size": 5120, "intermediate_size": 13696,
        "num_hidden_layers": 40, "num_attention_heads": 40, "vocab_size": 125696
    }),
    "internlm2-7b": (7_737_708_544, {
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "model_type": "internlm2", "bias": False, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92544
    }),
    "EXAONE-3.5-7.8B": (7_818_448_896, {
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "model_type": "exaone", "hidden_size": 4096, "intermediate_size":
        14336, "num_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 102400, "activation_function": "silu"
    }),
    "starcoder": (15_517_456_384, {
        "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "n_inner": 24576, "n_positions": 8192, "multi_query":
        True, "vocab_size": 49152
    }),
    "gpt-j-6b": (6_050_882_784, {
        "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_inner": None, "n_positions": 2048, "rotary_dim": 64,
        "vocab_size": 50400, "tie_word_embeddings": False
    }),
    "gpt-neo-2.7B": (2_651_307_520, {
        "model_type": "gpt_neo", "hidden_size": 2560, "num_heads": 20, "num_layers": 32, "intermediate_size": None,
        "max_position_embeddings": 2048, "window_size": 256, "attention_types": [[["global", "local"], 16]], "vocab_size": 50257
    }),
    "mpt-7b": (6_649_286_656, {
        "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4, "max_seq_len": 2048, "no_bias": True,
        "attn_config": {"alibi": True}, "vocab_size": 50432
    }),
    "falcon-7b": (6_921_720_704, {
        "model_type": "RefinedWebModel", "hidden_size": 4544, "n_head": 71, "n_layer": 32, "multi_query": True, "parallel_attn": True,
        "alibi": False, "bias": False, "vocab_size": 65024
    }),
    "distilbert-base": (66_985_530, {
        "model_type": "distilbert", "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "max_position_embeddings": 512,
        "vocab_size": 30522
    }),
    "roberta-base": (124_697_433, {
        "model_type": "roberta", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 50265
    }),
    "bloom-7b1": (7_069_016_064, {
        "model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32, "n_inner": None, "seq_length": 2048,
        "offset_alibi": 100, "vocab_size": 250880
    }),
    "Hunyuan-A13B": (80_393_183_232, {
        "model_type": "hunyuan_v1_moe", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 3072, "moe_intermediate_size":
        [3072] * 32, "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_experts": 64,
        "num_hidden_layers": 32, "max_position_embeddings": 32768, "tie_word_embeddings": True, "use_qk_norm": True, "vocab_size": 128167
    }),
    "mt5-base": (582_401_280, {
        "model_type": "mt5", "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "vocab_size": 250112,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False
    }),
    "granite-4.0-h-tiny": (6_939_037_248, {
        "model_type": "granitemoehybrid", "hidden_size": 1536, "intermediate_size": 512, "shared_intermediate_size": 1024,
        "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 64, "num_experts_per_tok": 6,
        "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "max_position_embeddings":
        131072, "position_embedding_type": "nope", "tie_word_embeddings": True, "vocab_size": 100352, "layer_types": ["attention" if i %
        10 == 5 else "mamba" for i in range(40)]
    }),
    "Nemotron-3-Nano": (31_577_937_344, {
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "model_type": "nemotron_h", "hidden_size": 2688,
        "intermediate_size": 1856, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128,
        "n_shared_experts": 1, "num_experts_per_tok": 6, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "num_hidden_layers": 52, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
        "vocab_size": 131072, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    }),
}  # fmt: skip
"""Parameters as the hub counts the tensors of each release, and the sizes that its config.json states."""


def read(tmp_path: Path, config: dict[str, Any]) -> Model:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return validate_spec(model_from_config(path), Model, "test")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(tmp_path: Path, name: str) -> None:
    """Within 0.005 %: biases of a head and of norms, where a family leaves them out, are counted or not."""
    published, config = PUBLISHED[name]
    assert read(tmp_path, config).parameters == pytest.approx(published, rel=5e-5)


def test_layers_of_the_families_are_of_their_kinds(tmp_path: Path) -> None:
    kinds = {
        name: set(read(tmp_path, PUBLISHED[name][1]).layer_mixers)
        for name in ("gpt-neo-2.7B", "granite-4.0-h-tiny", "Nemotron-3-Nano")
    }
    assert {
        "gpt-neo-2.7B": {"full", "window"},
        "granite-4.0-h-tiny": {"mamba2", "full"},
        "Nemotron-3-Nano": {"mamba2", "full", "none"},
    } == kinds
    assert ("alibi", "rotary") == tuple(
        read(tmp_path, PUBLISHED[name][1]).positions for name in ("Baichuan2-13B", "Baichuan2-7B")
    )
    assert 0.25 == read(tmp_path, PUBLISHED["gpt-j-6b"][1]).rotary_share


def test_a_list_of_words_is_a_string_of_letters(tmp_path: Path) -> None:
    """The library (version 5) saves layers_block_type where the files of the hub have hybrid_override_pattern."""
    config = dict(PUBLISHED["Nemotron-3-Nano"][1])
    letters = config.pop("hybrid_override_pattern")
    words = [{"M": "linear_attention", "E": "moe", "*": "full_attention"}[letter] for letter in letters]
    assert read(tmp_path, PUBLISHED["Nemotron-3-Nano"][1]) == read(tmp_path, config | {"layers_block_type": words})
    with pytest.raises(SpecError, match="MLPs and experts in one model"):
        read(tmp_path, config | {"hybrid_override_pattern": "ME-*"})
    with pytest.raises(SpecError, match="hybrid_override_pattern: expected letters of M, -, E, "):
        read(tmp_path, config)


LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 32000,
         "max_position_embeddings": 4096}  # fmt: skip


def test_a_type_that_is_not_known_is_read_by_what_its_file_shows(tmp_path: Path) -> None:
    plain = read(tmp_path, LLAMA | {"model_type": "somebody_s", "hidden_act": "relu2"})
    assert not plain.gated_mlp
    latent = {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    assert "latent" == read(tmp_path, LLAMA | latent | {"model_type": "somebody_s"}).attention
    segments = read(tmp_path, LLAMA | {"model_type": "somebody_s", "type_vocab_size": 2})
    assert "encoder" == segments.architecture
    assert any("names that bert uses" in one.why for one in import_file(tmp_path / "config.json").assumed)


MASKED = {"architectures": ["SomebodysForMaskedLM"], "model_type": "somebody_s"}


def test_a_class_that_predicts_masked_tokens_is_an_encoder(tmp_path: Path) -> None:
    """Whatever names its sizes have: ModernBERT's are llama's, DeBERTa's are BERT's with no types of segments."""
    modern = read(tmp_path, LLAMA | MASKED)
    assert ("encoder", True, True) == (modern.architecture, modern.gated_mlp, modern.tied_embeddings)
    assert any(
        ("model.architecture", "encoder") == (one.field, one.value)
        for one in import_file(tmp_path / "config.json").assumed
    )
    deberta = read(tmp_path, LLAMA | MASKED | {"type_vocab_size": 0, "hidden_act": "gelu"})
    assert ("encoder", False, "layer_norm") == (deberta.architecture, deberta.gated_mlp, deberta.norm)
    assert any("names that bert uses" in one.why for one in import_file(tmp_path / "config.json").assumed)


EXPERTS = LLAMA | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}


def test_layers_that_a_file_lists_as_dense_have_no_experts(tmp_path: Path) -> None:
    """In front of the others under each of the names; a number is how many layers lie between two with experts."""
    dense = [
        {"mlp_only_layers": [0, 1]},
        {"moe_layer_freq": [0, 0] + [1] * 14},
        {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 14},
    ]
    assert [2] * 3 == [read(tmp_path, EXPERTS | one).dense_layers for one in dense]
    assert [1, 2] == [read(tmp_path, EXPERTS | {"moe_layer_freq": every}).moe_every for every in (1, 2)]
    read(tmp_path, EXPERTS | {"moe_layer_freq": 1})
    assert not [one for one in import_file(tmp_path / "config.json").not_understood if "moe_layer_freq" in one.text]


def test_a_list_of_ones_says_that_no_layer_carries_a_state(tmp_path: Path) -> None:
    assert 16 == read(tmp_path, LLAMA | {"model_type": "minimax_m2", "attn_type_list": [1] * 16}).layers


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"model_type": "minimax_m1", "attn_type_list": [0] * 7 + [1]}, "attn_type_list says that some of its layers carry"),
        (LLAMA | {"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config says that some"),
        (EXPERTS | {"mlp_only_layers": [3]}, "mlp_only_layers: only dense layers in front"),
        (EXPERTS | {"moe_layer_freq": [0, 1] * 8}, "moe_layer_freq: only dense layers in front"),
        (EXPERTS | {"model_type": "llama4_text", "interleave_moe_layer_step": 2, "moe_layers": [3]}, "moe_layers: expected every"),
        (EXPERTS | {"moe_intermediate_size": [512, 256]}, "moe_intermediate_size: expected a whole number above zero, got .512, 256."),
        (LLAMA | {"model_type": "llama", "hidden_size": "4096"}, "hidden_size: expected a whole number above zero, got '4096'"),
        (LLAMA | {"model_type": "gemma4_text", "hidden_size_per_layer_input": 256}, "embeddings of each layer are not modelled"),
        (LLAMA | {"model_type": "electra", "type_vocab_size": 2, "embedding_size": 128}, "embedding_size: 128 beside hidden_size"),
        (PUBLISHED["gpt-neo-2.7B"][1] | {"attention_types": [[["global"], 3]]}, "attention_types: expected global, local"),
        (PUBLISHED["granite-4.0-h-tiny"][1] | {"layer_types": ["conv"] * 40}, "'conv' is not modelled"),
    ],
)  # fmt: skip
def test_what_another_shape_has_is_refused(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read(tmp_path, config)


def test_every_second_layer_has_experts_under_each_of_the_names(tmp_path: Path) -> None:
    experts = LLAMA | {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
        "model_type": "ernie4_5_moe",
    }
    sparse = [read(tmp_path, experts | {name: 2}).moe_layers for name in ("decoder_sparse_step", "moe_layer_interval")]
    assert [(False, True) * 8] * 2 == sparse
