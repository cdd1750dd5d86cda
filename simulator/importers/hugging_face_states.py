"""Hugging Face models whose layers carry a state, alone or between layers of attention.

    qwen3_next, qwen3_5            gated delta rules; linear_num_value_heads, ...
    nemotron_h                     one mixer, MLP or mixture of experts a layer; hybrid_override_pattern or layers_block_type
    bamba, granitemoehybrid        Mamba-2 or attention, with an MLP each; layer_types, mamba_n_heads, ...
    mamba2                         Mamba-2 alone; num_heads, state_size, ...

Source: the configuration classes of the transformers library (version 5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.errors import SpecError
from simulator.importers.hugging_face_config import Config

__all__ = ["mamba2", "mamba_beside_attention", "nemotron_h", "qwen3_next", "shortest"]

Table = dict[str, Any]
_BLOCKS = {"mamba": ("mamba2", False), "mlp": ("none", True), "moe": ("none", True), "attention": ("full", False)}
"""What a layer can be: (mixer, whether there is an MLP)."""
_LETTERS = {"M": "mamba", "-": "mlp", "E": "moe", "*": "attention"}
_WORDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
_MAMBA_LENGTH = 2048
"""Tokens of a sequence, which a state-space model does not limit: those it was trained on (arXiv 2405.21060)."""


def shortest(pattern: list[str]) -> list[str]:
    """Return the shortest beginning of a pattern that, repeated, gives all of it."""
    for n in range(1, len(pattern) + 1):
        if all(word == pattern[i % n] for i, word in enumerate(pattern)):
            return pattern[:n]
    return pattern


def qwen3_next(c: Config, base: Callable[[Config], Table], sparse: bool) -> Table:
    """Three layers of the gated delta rule for every one of gated attention; with or without experts."""
    table = base(Config(c.kind, c.path, {**c.data, "layer_types": None, "sliding_window": None}, c.seen))
    named = c.words("layer_types")
    every = c.whole("full_attention_interval", default=4)
    kinds = {"linear_attention": "delta", "full_attention": "full"}
    c.refuse_layers(named, kinds)
    pattern = [kinds[word] for word in named] or ["delta"] * (every - 1) + ["full"]
    if sparse:
        table["shared_expert_ffn"] = c.whole("shared_expert_intermediate_size")
    return table | {
        "qk_norm": True,
        "attention_gate": True,
        "mixers": shortest(pattern),
        "ssm_heads": c.whole("linear_num_value_heads"),
        "ssm_head_dim": c.whole("linear_value_head_dim"),
        "ssm_groups": c.whole("linear_num_key_heads"),
        "ssm_state": c.whole("linear_key_head_dim"),
        "conv_width": c.whole("linear_conv_kernel_dim"),
    }


def nemotron_h(c: Config, base: Callable[[Config], Table]) -> Table:
    """Layers that are a Mamba-2 mixer, attention, an MLP or a mixture of experts, as a string of letters or a list of words says."""
    blocks = _blocks_of(c)
    if {"mlp", "moe"} <= set(blocks):
        raise SpecError(
            f"{c.path}: layers: MLPs and experts in one model are not modelled where each is a layer of its own"
        )
    table = base(c)
    table |= {"gated_mlp": False, "positions": "none", "layers": len(blocks)}
    if "moe" in blocks:
        width = c.whole("moe_intermediate_size")
        table |= {
            "ffn": width,
            "expert_ffn": width,
            "experts": c.whole("n_routed_experts"),
            "experts_per_token": c.whole("num_experts_per_tok"),
        }
        if c.count("n_shared_experts"):
            table["shared_expert_ffn"] = c.whole("n_shared_experts") * c.whole(
                "moe_shared_expert_intermediate_size", default=width
            )
    return table | {
        "mixers": [_BLOCKS[block][0] for block in blocks],
        "mlps": [_BLOCKS[block][1] for block in blocks],
        "head_dim": c.whole("attention_head_dim", "head_dim", default=table["hidden"] // table["heads"]),
        "ssm_heads": c.whole("mamba_num_heads"),
        "ssm_head_dim": c.whole("mamba_head_dim"),
        "ssm_groups": c.whole("n_groups"),
        "ssm_state": c.whole("ssm_state_size"),
        "conv_width": c.whole("conv_kernel"),
    }


def _blocks_of(c: Config) -> list[str]:
    """Per layer one of mamba, attention, mlp, moe."""
    words = c.words("layers_block_type")
    letters = c.get("hybrid_override_pattern")
    if words and not set(words) - set(_WORDS):
        return [_WORDS[word] for word in words]
    if not isinstance(letters, str) or not letters or set(letters) - set(_LETTERS):
        known = f"hybrid_override_pattern: expected letters of {', '.join(_LETTERS)}, got {str(letters)[:40]}"
        raise SpecError(
            f"{c.path}: {known}; or layers_block_type: a list of {', '.join(_WORDS)}, got {str(words)[:60]}"
        )
    return [_LETTERS[letter] for letter in letters]


def mamba_beside_attention(c: Config, base: Callable[[Config], Table]) -> Table:
    """bamba, granitemoehybrid: a Mamba-2 mixer or attention, and an MLP behind either; experts beside the MLP where there are any."""
    words = c.words("layer_types") or c.words("layers_block_type")
    c.refuse_layers(words, _WORDS)
    at = c.get("attn_layer_indices")
    if not words and isinstance(at, list):
        words = ["attention" if i in at else "mamba" for i in range(c.whole("num_hidden_layers"))]
    table = base(Config(c.kind, c.path, {**c.data, "layer_types": None}, c.seen))
    if c.get("position_embedding_type") == "nope":
        table["positions"] = "none"
    dense = c.count("shared_intermediate_size")
    if dense:
        table |= {"shared_expert_ffn": dense} if table.get("experts") else {"ffn": dense}
    kinds = [_BLOCKS[_WORDS[word]][0] for word in words] or ["mamba2"]
    table["mixers"] = shortest(kinds)
    if "mamba2" in kinds:
        table |= {
            "ssm_heads": c.whole("mamba_n_heads"),
            "ssm_head_dim": c.whole("mamba_d_head"),
            "ssm_groups": c.whole("mamba_n_groups", default=1),
            "ssm_state": c.whole("mamba_d_state"),
            "conv_width": c.whole("mamba_d_conv", default=4),
        }
    return table


def mamba2(c: Config) -> Table:
    """Layers of a Mamba-2 mixer alone: no attention, no MLP."""
    hidden, heads = c.whole("hidden_size"), c.whole("num_heads", default=128)
    return {
        "layers": c.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "ffn": hidden,
        "gated_mlp": False,
        "norm": "rms_norm",
        "positions": "none",
        "tied_embeddings": c.flag("tie_word_embeddings", False),
        "vocabulary": c.whole("vocab_size"),
        "sequence_length": _MAMBA_LENGTH,
        "linear_bias": c.flag("use_bias", False),
        "qkv_bias": False,
        "mixers": ["mamba2"],
        "mlps": [False],
        "head_dim": c.whole("head_dim", default=64),
        "ssm_heads": heads,
        "ssm_head_dim": c.whole("head_dim", default=64),
        "ssm_groups": c.whole("n_groups", default=8),
        "ssm_state": c.whole("state_size", default=128),
        "conv_width": c.whole("conv_kernel", default=4),
    }
