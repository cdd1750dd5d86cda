"""What families of Hugging Face models have beside their sizes, and what their classes fill in.

Source: the model and configuration classes of the transformers library (version 5).
"""

from __future__ import annotations

from typing import Any

__all__ = ["DEFAULTS", "NORMED_HEADS", "QKV_BIAS", "TIED", "TRAITS", "fills_masks", "like_bert"]

NORMED_HEADS = ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmo3", "qwen3_vl_text", "qwen3_vl_moe_text", "olmoe",
                 "exaone4", "apertus", "dots1", "flex_olmo")  # fmt: skip
"""Families that normalise queries and keys."""
QKV_BIAS = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "hunyuan_v1_dense")
"""Families with biases on queries, keys and values whatever attention_bias says by default."""
TIED = ("gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "starcoder2", "smollm3")
"""Families whose class ties embedding and head by default."""
_LAYER_NORMS: dict[str, Any] = {"norm": "layer_norm"}
_PLAIN_MLP: dict[str, Any] = {"gated_mlp": False}
TRAITS: dict[str, dict[str, Any]] = {
    "gemma2": {"post_norms": True},
    "gemma3_text": {"post_norms": True},
    "glm4": {"post_norms": True},
    "stablelm": _LAYER_NORMS,
    "starcoder2": _LAYER_NORMS | _PLAIN_MLP | {"linear_bias": True, "qkv_bias": True},
    "phi": _LAYER_NORMS | _PLAIN_MLP | {"linear_bias": True, "qkv_bias": True},
    "cohere": _LAYER_NORMS,
    "cohere2": _LAYER_NORMS,
    "nemotron": _LAYER_NORMS | _PLAIN_MLP,
    "phimoe": _LAYER_NORMS,
    "arcee": _PLAIN_MLP,
    "apertus": _PLAIN_MLP,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
              "vocab_size": 32000, "max_position_embeddings": 2048},
    "mistral": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131072, "sliding_window": 4096},
    "gemma": {"hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
              "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192},
    "gemma2": {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
               "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192, "sliding_window": 4096},
    "gemma3_text": {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
                    "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "max_position_embeddings": 131072,
                    "sliding_window": 4096},
    "qwen2": {"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 32, "vocab_size": 151936, "max_position_embeddings": 32768},
}  # fmt: skip
"""What the classes fill in where a file leaves it out; needed inside other models only."""


def like_bert(data: dict[str, object]) -> bool:
    """Whether a file of a type that is not known has one of the keys that only bert and its kin have: they tell segments apart."""
    return "type_vocab_size" in data


def fills_masks(data: dict[str, object]) -> bool:
    """Whether the class that a file names predicts masked tokens, so that every token sees all others."""
    named = data.get("architectures")
    return isinstance(named, list) and any(str(one).endswith("ForMaskedLM") for one in named)
