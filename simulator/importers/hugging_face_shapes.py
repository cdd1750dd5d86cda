"""What each family of Hugging Face models calls its sizes -> the fields of a model.

    llama and kin            num_hidden_layers, hidden_size, num_attention_heads, num_key_value_heads, intermediate_size
    gpt2, bloom, falcon      n_layer / num_hidden_layers, n_embd / hidden_size, n_head / num_attention_heads
    mixtures of experts      num_experts, num_local_experts or n_routed_experts; moe_intermediate_size; first_k_dense_replace
    windows                  layer_types, sliding_window, attention_chunk_size
    mamba2, dbrx             num_heads of a state; d_model, attn_config, ffn_config
    bert, vit, t5            encoders of tokens and of patches; num_layers and num_decoder_layers

What a family has beside its sizes (norms, biases, gates) is in `hugging_face_traits`.

Source: the configuration classes of the transformers library (version 5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.errors import SpecError
from simulator.importers.hugging_face_config import Config
from simulator.importers.hugging_face_traits import DEFAULTS, NORMED_HEADS, QKV_BIAS, TIED, TRAITS

__all__ = ["class_defaults", "shape_of", "types"]

Table = dict[str, Any]
_MIXERS = {"full_attention": "full", "sliding_attention": "window", "chunked_attention": "chunk"}
_BLOCKS = {"M": ("mamba2", False), "-": ("none", True), "*": ("full", False)}
"""Letters of a hybrid_override_pattern: (mixer, whether there is an MLP)."""
_MAMBA_LENGTH = 2048
"""Tokens of a sequence, which a state-space model does not limit: those it was trained on (arXiv 2405.21060)."""
_EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_LLAMAS = (
    "llama", "mistral", "ministral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "granite",
    "smollm3", "seed_oss", "glm", "glm4", "ernie4_5", "hunyuan_v1_dense", "exaone4", "stablelm", "starcoder2", "phi", "cohere",
    "cohere2", "nemotron", "arcee", "apertus", "helium", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text",
    "qwen3_vl_text",
)  # fmt: skip
_EXPERTS = (
    "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe",
    "gpt_oss", "llama4_text", "olmoe", "phimoe", "granitemoe", "dots1", "flex_olmo",
)  # fmt: skip


def types() -> tuple[str, ...]:
    """Return the values of model_type that can be read, in order."""
    return tuple(sorted(_READERS))


def shape_of(config: Config) -> Table:
    """Return the fields of the model that a file describes.

    Raises:
        SpecError: a size is missing or wrong.
    """
    reader = _READERS.get(config.kind)
    if reader is None:
        sparse = any(config.get(key) for key in _EXPERT_COUNTS)
        reader = _experts if sparse else _llama
    table = reader(config)
    return table | ({} if table.get("gated_mlp", True) else _written_out(config))


def _written_out(c: Config) -> Table:
    """An activation function that transformers (activations.py) has no kernel for; gpt2's is one unless its file says otherwise."""
    keys = ("activation_function", "hidden_act", "hidden_activation")
    said = next((c.get(key) for key in keys if c.get(key)), "gelu_new" if c.kind == "gpt2" else "")
    return {"activation": said} if said in ("gelu_new", "gelu_python") else {}


def class_defaults(kind: str) -> Table:
    """Return what the class of a model_type fills in where a file leaves it out."""
    return dict(DEFAULTS.get(kind, {}))


def _llama(c: Config) -> Table:
    heads = c.whole("num_attention_heads")
    table: Table = {
        "layers": c.whole("num_hidden_layers"),
        "hidden": c.whole("hidden_size"),
        "heads": heads,
        "kv_heads": c.whole("num_key_value_heads", default=heads),
        "ffn": c.whole("intermediate_size", "moe_intermediate_size"),
        "gated_mlp": True,
        "norm": "rms_norm",
        "positions": "rotary",
        "tied_embeddings": c.flag("tie_word_embeddings", c.kind in TIED),
        "vocabulary": c.whole("vocab_size"),
        "sequence_length": c.whole("max_position_embeddings"),
        "linear_bias": c.flag("mlp_bias", False),
        "qkv_bias": c.flag("attention_bias", c.flag("use_qkv_bias", c.kind in QKV_BIAS)),
    }
    if c.get("head_dim") is not None:
        table["head_dim"] = c.whole("head_dim")
    if c.share("partial_rotary_factor") < 1.0:
        table["rotary_share"] = c.share("partial_rotary_factor")
    if c.kind in NORMED_HEADS or c.flag("use_qk_norm", False) or c.flag("qk_layernorm", False):
        table["qk_norm"] = c.kind != "llama4_text"
    return table | TRAITS.get(c.kind, {}) | _windows(c, table["layers"]) | c.rotary_scale()


def _windows(c: Config, layers: int) -> Table:
    """Sliding windows and chunks: the list of the file, else the pattern of the family."""
    _check_layer_types(c)
    size = c.count("attention_chunk_size") if c.kind == "llama4_text" else c.count("sliding_window")
    if not size or (c.kind.startswith("qwen") and not c.flag("use_sliding_window", False)):
        return {}
    named = c.words("layer_types")
    unknown = sorted(set(named) - set(_MIXERS))
    if unknown:
        raise SpecError(f"{c.path}: layer_types: {unknown[0][:40]!r} is not modelled; known: {', '.join(_MIXERS)}")
    pattern = [_MIXERS[word] for word in named] or _habit(c, layers)
    if not {"window", "chunk"} & set(pattern):
        return {}
    return {"window": size, "mixers": _shortest(pattern)}


def _check_layer_types(c: Config) -> None:
    """Refuse layers that carry a state, in a family that is not known to have them."""
    named = set(c.words("layer_types"))
    other = sorted(word for word in named if any(part in word for part in ("linear", "mamba", "conv", "recurrent")))
    if other:
        raise SpecError(f"{c.path}: layer_types: {other[0][:40]!r} is not modelled; known: {', '.join(_MIXERS)}")
    if named - set(_MIXERS):
        c.seen.discard("layer_types")


def _habit(c: Config, layers: int) -> list[str]:
    """Which layers have windows where the file does not list them."""
    if c.kind == "llama4_text":
        every = c.whole("no_rope_layer_interval", default=4)
        return ["chunk"] * (every - 1) + ["full"]
    if c.kind in ("gemma2", "gpt_oss"):
        return ["window", "full"]
    if c.kind == "gemma3_text":
        return ["window"] * (c.whole("sliding_window_pattern", default=6) - 1) + ["full"]
    if c.kind == "olmo3":
        return ["window"] * 3 + ["full"]
    if c.kind == "cohere2":
        return ["window"] * (c.whole("sliding_window_pattern", default=4) - 1) + ["full"]
    if c.kind.startswith("qwen"):
        first = min(layers, c.count("max_window_layers"))
        return ["full"] * first + ["window"] * (layers - first)
    return ["window"]


def _shortest(pattern: list[str]) -> list[str]:
    """The shortest beginning of a pattern that, repeated, gives all of it."""
    for n in range(1, len(pattern) + 1):
        if all(word == pattern[i % n] for i, word in enumerate(pattern)):
            return pattern[:n]
    return pattern


def _experts(c: Config) -> Table:
    """The llama names and a mixture of experts; DeepSeek's latent attention and prediction modules where the file has them."""
    table = _llama(c)
    dense = c.get("intermediate_size_mlp") if c.kind == "llama4_text" else None
    width = c.whole("moe_intermediate_size", "intermediate_size")
    if dense is not None:
        table["ffn"] = c.whole("intermediate_size_mlp")
        width = c.whole("intermediate_size")
    experts = c.whole(*_EXPERT_COUNTS)
    per_token = c.whole("num_experts_per_tok", "moe_k", "moe_topk")
    table |= {"experts": experts, "experts_per_token": per_token, "expert_ffn": width}
    shared = max(c.count(name) for name in _SHARED_COUNTS) * width if c.kind != "llama4_text" else width
    shared = shared or c.count("shared_expert_intermediate_size")
    if shared:
        table["shared_expert_ffn"] = shared
    every = c.whole("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    dense_layers = max(c.count("first_k_dense_replace"), c.count("moe_layer_start_index"), _dense_layers(c))
    table |= {"dense_layers": dense_layers} | ({"moe_every": every} if every > 1 else {})
    groups, used = c.count("n_group"), c.count("topk_group")
    if groups > 1 and used and used < groups:
        table |= {"expert_groups": groups, "groups_per_token": used}
    if c.kind == "gpt_oss":
        table |= {"linear_bias": True, "qkv_bias": True, "clamped_gate": True}
    if c.count("num_nextn_predict_layers"):
        table["mtp_layers"] = c.whole("num_nextn_predict_layers")
    if c.count("kv_lora_rank"):
        table |= _latent(c)
    return table


def _dense_layers(c: Config) -> int:
    """How many layers mlp_layer_types calls dense, all at the beginning; 0 without it."""
    kinds = c.words("mlp_layer_types")
    dense = kinds.count("dense")
    if set(kinds) - {"dense", "sparse"} or "sparse" in kinds[:dense]:
        raise SpecError(f"{c.path}: mlp_layer_types: only dense layers in front of sparse ones are modelled")
    return dense


def _latent(c: Config) -> Table:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    heads = c.whole("num_attention_heads")
    sizes: Table = {name: c.whole(name) for name in names}
    query = sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
    return {"attention": "latent", "q_lora_rank": c.count("q_lora_rank"), "kv_heads": heads, "head_dim": query} | sizes


def _gpt(c: Config) -> Table:
    """gpt2, bloom, falcon, gpt_neox and opt: layer norms, two matrices an MLP, biases unless switched off."""
    hidden = c.whole("n_embd", "hidden_size")
    heads = c.whole("n_head", "num_attention_heads")
    kind, falcon = c.kind, c.kind == "falcon"
    bias = c.flag("bias", False) if falcon else c.flag("enable_bias", True) if kind == "opt" else True
    positions = {"gpt2": "learned", "opt": "learned", "bloom": "alibi"}.get(kind, "rotary")
    if falcon and c.flag("alibi", False):
        positions = "alibi"
    given = c.get("num_kv_heads") if falcon else None
    few = 1 if falcon and c.flag("multi_query", True) and not c.flag("new_decoder_architecture", False) else heads
    default = 2048 if kind in ("bloom", "falcon") else None
    table: Table = {
        "layers": c.whole("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": c.whole("num_kv_heads", default=few) if given and few == heads else few,
        "ffn": c.whole("n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size", default=4 * hidden),
        "gated_mlp": False,
        "norm": "layer_norm",
        "positions": positions,
        "tied_embeddings": c.flag("tie_word_embeddings", kind != "gpt_neox"),
        "vocabulary": c.whole("vocab_size"),
        "sequence_length": c.whole("n_positions", "max_position_embeddings", "seq_length", default=default),
        "linear_bias": bias,
        "qkv_bias": c.flag("attention_bias", True) if kind == "gpt_neox" else bias,
    }
    if kind == "gpt_neox" and c.share("rotary_pct", "partial_rotary_factor") < 1.0:
        table["rotary_share"] = c.share("rotary_pct", "partial_rotary_factor")
    return table


def _encoder(c: Config) -> Table:
    """bert and vit."""
    table: Table = {
        "layers": c.whole("num_hidden_layers"),
        "hidden": c.whole("hidden_size"),
        "heads": c.whole("num_attention_heads"),
        "ffn": c.whole("intermediate_size"),
        "gated_mlp": False,
        "norm": "layer_norm",
        "positions": "learned",
        "linear_bias": True,
        "qkv_bias": c.flag("qkv_bias", True),
    }
    if c.kind == "bert":
        return table | {
            "architecture": "encoder",
            "tied_embeddings": c.flag("tie_word_embeddings", True),
            "vocabulary": c.whole("vocab_size"),
            "sequence_length": c.whole("max_position_embeddings"),
            "token_types": c.count("type_vocab_size"),
            "head_transform": True,
            "pooler": True,
        }
    image, patch = c.whole("image_size", default=224), c.whole("patch_size", default=16)
    labels = c.get("id2label")
    return table | {
        "architecture": "vision",
        "tied_embeddings": False,
        "vocabulary": len(labels) if isinstance(labels, dict) and labels else c.whole("num_labels", default=1000),
        "sequence_length": (image // patch) ** 2 + 1,
        "patch_inputs": c.whole("num_channels", default=3) * patch * patch,
    }


def _t5(c: Config) -> Table:
    projection = str(c.get("feed_forward_proj", "relu"))
    layers = c.whole("num_layers")
    return {
        "architecture": "encoder_decoder",
        "encoder_layers": layers,
        "layers": c.whole("num_decoder_layers", default=layers),
        "hidden": c.whole("d_model"),
        "heads": c.whole("num_heads"),
        "head_dim": c.whole("d_kv"),
        "ffn": c.whole("d_ff"),
        "gated_mlp": projection.startswith("gated-"),
        "norm": "rms_norm",
        "positions": "relative_bias",
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "vocabulary": c.whole("vocab_size"),
        "sequence_length": c.whole("n_positions", default=512),
        "target_length": 128,
        "linear_bias": False,
        "qkv_bias": False,
    }


def _qwen3_next(c: Config) -> Table:
    """Three layers of the gated delta rule for every one of gated attention; with or without experts."""
    base = _experts if any(c.get(key) for key in _EXPERT_COUNTS) else _llama
    table = base(Config(c.kind, c.path, {**c.data, "layer_types": None, "sliding_window": None}, c.seen))
    named = c.words("layer_types")
    every = c.whole("full_attention_interval", default=4)
    kinds = {"linear_attention": "delta", "full_attention": "full"}
    unknown = sorted(set(named) - set(kinds))
    if unknown:
        raise SpecError(f"{c.path}: layer_types: {unknown[0][:40]!r} is not modelled; known: {', '.join(kinds)}")
    pattern = [kinds[word] for word in named] or ["delta"] * (every - 1) + ["full"]
    if base is _experts:
        table["shared_expert_ffn"] = c.whole("shared_expert_intermediate_size")
    return table | {
        "qk_norm": True,
        "attention_gate": True,
        "mixers": _shortest(pattern),
        "ssm_heads": c.whole("linear_num_value_heads"),
        "ssm_head_dim": c.whole("linear_value_head_dim"),
        "ssm_groups": c.whole("linear_num_key_heads"),
        "ssm_state": c.whole("linear_key_head_dim"),
        "conv_width": c.whole("linear_conv_kernel_dim"),
    }


def _nemotron_h(c: Config) -> Table:
    """Layers that are a Mamba-2 mixer, attention or an MLP, as a string of letters says."""
    letters = c.get("hybrid_override_pattern")
    if not isinstance(letters, str) or not letters or set(letters) - set(_BLOCKS):
        raise SpecError(
            f"{c.path}: hybrid_override_pattern: expected letters of {', '.join(_BLOCKS)}, got {str(letters)[:40]}"
        )
    table = _llama(c)
    table |= {"gated_mlp": False, "positions": "none", "layers": len(letters)}
    return table | {
        "mixers": [_BLOCKS[letter][0] for letter in letters],
        "mlps": [_BLOCKS[letter][1] for letter in letters],
        "head_dim": c.whole("attention_head_dim", "head_dim", default=table["hidden"] // table["heads"]),
        "ssm_heads": c.whole("mamba_num_heads"),
        "ssm_head_dim": c.whole("mamba_head_dim"),
        "ssm_groups": c.whole("n_groups"),
        "ssm_state": c.whole("ssm_state_size"),
        "conv_width": c.whole("conv_kernel"),
    }


def _mamba2(c: Config) -> Table:
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


def _dbrx(c: Config) -> Table:
    """DBRX keeps the sizes of attention and of the experts in tables of their own."""
    attention, experts = c.part("attn_config"), c.part("ffn_config")
    width = experts.whole("ffn_hidden_size")
    return {
        "layers": c.whole("n_layers"),
        "hidden": c.whole("d_model"),
        "heads": c.whole("n_heads"),
        "kv_heads": attention.whole("kv_n_heads", default=1),
        "ffn": width,
        "gated_mlp": True,
        "norm": "layer_norm",
        "positions": "rotary",
        "tied_embeddings": c.flag("tie_word_embeddings", False),
        "vocabulary": c.whole("vocab_size"),
        "sequence_length": c.whole("max_seq_len"),
        "linear_bias": False,
        "qkv_bias": False,
        "experts": experts.whole("moe_num_experts"),
        "experts_per_token": experts.whole("moe_top_k", default=1),
        "expert_ffn": width,
    }


_READERS: dict[str, Callable[[Config], Table]] = {
    **dict.fromkeys(_LLAMAS, _llama),
    **dict.fromkeys(_EXPERTS, _experts),
    **dict.fromkeys(("gpt2", "bloom", "falcon", "gpt_neox", "opt"), _gpt),
    "bert": _encoder,
    "vit": _encoder,
    "t5": _t5,
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_next,
    "qwen3_5_moe_text": _qwen3_next,
    "nemotron_h": _nemotron_h,
    "mamba2": _mamba2,
    "dbrx": _dbrx,
}
