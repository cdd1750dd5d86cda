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
from simulator.importers.hugging_face_sparse import sparse_layers
from simulator.importers.hugging_face_states import mamba2, mamba_beside_attention, nemotron_h, qwen3_next, shortest
from simulator.importers.hugging_face_traits import (
    DEFAULTS,
    NORMED_HEADS,
    QKV_BIAS,
    TIED,
    TRAITS,
    fills_masks,
    like_bert,
)

__all__ = ["class_defaults", "shape_of", "types"]

Table = dict[str, Any]
_MIXERS = {"full_attention": "full", "sliding_attention": "window", "chunked_attention": "chunk"}
_EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_FALCONS = ("falcon", "RefinedWeb", "RefinedWebModel")
"""Falcon under the names that its files had before the library knew it."""
_GPTS = ("gpt2", "bloom", "gpt_neox", "opt", "gptj", "codegen", "gpt_neo", "gpt_bigcode", "mpt", *_FALCONS)
_TURNED = ("falcon", "gpt_neox", "gptj", "codegen")
_UNTIED_GPTS = ("gpt_neox", "gptj", "codegen")
_PLAIN_QKV = ("gptj", "codegen", "gpt_neo")
"""Whose queries, keys and values have no biases beside MLPs that do."""
_BERTS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")
_PLAIN_ACTS = ("relu", "relu2", "xielu")
"""Activations of MLPs without a gate: so types that are not known have two matrices."""
_LLAMAS = (
    "llama", "mistral", "ministral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "granite",
    "smollm3", "seed_oss", "glm", "glm4", "ernie4_5", "hunyuan_v1_dense", "exaone4", "stablelm", "starcoder2", "phi", "cohere",
    "cohere2", "nemotron", "arcee", "apertus", "helium", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text",
    "qwen3_vl_text", "exaone", "baichuan", "internlm", "internlm2", "minicpm", "bitnet",
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
    reader = _READERS.get(config.kind) or (_encoder if like_bert(config.data) else _either(config))
    table = reader(config)
    if config.kind not in _READERS and fills_masks(config.data):
        table |= {
            "architecture": "encoder",
            "tied_embeddings": config.flag("tie_word_embeddings", True),
            "head_transform": True,
        }
    return table | ({} if table.get("gated_mlp", True) else _written_out(config))


def _written_out(c: Config) -> Table:
    """An activation function that transformers (activations.py) has no kernel for; gpt2's is one unless its file says otherwise."""
    keys = ("activation_function", "hidden_act", "hidden_activation")
    said = next((c.get(key) for key in keys if c.get(key)), "gelu_new" if c.kind == "gpt2" else "")
    return {"activation": said} if said in ("gelu_new", "gelu_python") else {}


def _either(c: Config) -> Callable[[Config], Table]:
    """The reader of llama's names, with experts where the file counts some."""
    return _experts if any(c.get(key) for key in _EXPERT_COUNTS) else _llama


def class_defaults(kind: str) -> Table:
    """Return what the class of a model_type fills in where a file leaves it out."""
    return dict(DEFAULTS.get(kind, {}))


def _llama(c: Config) -> Table:
    heads = c.whole("num_attention_heads")
    table: Table = {
        "layers": c.whole("num_hidden_layers", "num_layers"),
        "hidden": c.whole("hidden_size"),
        "heads": heads,
        "kv_heads": c.whole("num_key_value_heads", default=heads),
        "ffn": c.whole("intermediate_size", "moe_intermediate_size"),
        "gated_mlp": True,
        "norm": "rms_norm",
        "positions": "rotary",
        "tied_embeddings": c.flag("tie_word_embeddings", c.kind in TIED),
        "vocabulary": c.whole("vocab_size"),
        "sequence_length": c.whole("max_position_embeddings", "model_max_length", "seq_length"),
        "linear_bias": c.flag("mlp_bias", False),
        "qkv_bias": c.flag(
            "attention_bias", c.flag("use_qkv_bias", c.flag("qkv_bias", c.flag("bias", c.kind in QKV_BIAS)))
        ),
    }
    if c.get("head_dim") is not None:
        table["head_dim"] = c.whole("head_dim")
    if c.share("partial_rotary_factor") < 1.0:
        table["rotary_share"] = c.share("partial_rotary_factor")
    if c.kind in NORMED_HEADS or c.flag("use_qk_norm", False) or c.flag("qk_layernorm", False):
        table["qk_norm"] = c.kind != "llama4_text"
    if c.count("kv_lora_rank"):
        table |= _latent(c)
        table.pop("rotary_share", None)
    if c.kind == "baichuan" and c.get("max_position_embeddings") is None:
        table["positions"] = "alibi"
    if c.kind not in _READERS and c.get("hidden_act") in _PLAIN_ACTS:
        table["gated_mlp"] = False
    return table | TRAITS.get(c.kind, {}) | _windows(c, table["layers"]) | c.rotary_scale()


def _qwen(c: Config) -> Table:
    """The first Qwen: its intermediate_size counts gate and up together."""
    table = _llama(c)
    return table | {"ffn": table["ffn"] // 2, "qkv_bias": True}


def _chatglm(c: Config) -> Table:
    """ChatGLM2, ChatGLM3 and GLM-4-9B as their own code names their sizes."""
    heads = c.whole("num_attention_heads")
    return {
        "layers": c.whole("num_layers"),
        "hidden": c.whole("hidden_size"),
        "heads": heads,
        "kv_heads": c.whole("multi_query_group_num") if c.flag("multi_query_attention", False) else heads,
        "head_dim": c.whole("kv_channels"),
        "ffn": c.whole("ffn_hidden_size"),
        "gated_mlp": True,
        "norm": "rms_norm" if c.flag("rmsnorm", True) else "layer_norm",
        "positions": "rotary",
        "rotary_share": 0.5,
        "tied_embeddings": c.flag("tie_word_embeddings", False),
        "vocabulary": c.whole("padded_vocab_size", "vocab_size"),
        "sequence_length": c.whole("seq_length"),
        "linear_bias": c.flag("add_bias_linear", False),
        "qkv_bias": c.flag("add_qkv_bias", False) or c.flag("add_bias_linear", False),
    }


def _windows(c: Config, layers: int) -> Table:
    """Sliding windows and chunks: the list of the file, else the pattern of the family."""
    _check_layer_types(c)
    size = c.count("attention_chunk_size") if c.kind == "llama4_text" else c.count("sliding_window")
    if not size or (c.kind.startswith("qwen") and not c.flag("use_sliding_window", False)):
        return {}
    named = c.words("layer_types")
    c.refuse_layers(named, _MIXERS)
    pattern = [_MIXERS[word] for word in named] or _habit(c, layers)
    if not {"window", "chunk"} & set(pattern):
        return {}
    return {"window": size, "mixers": shortest(pattern)}


def _check_layer_types(c: Config) -> None:
    """Refuse layers that carry a state, in a family that is not known to have them."""
    named = set(c.words("layer_types"))
    c.refuse_layers(
        (word for word in named if any(part in word for part in ("linear", "mamba", "conv", "recurrent"))), _MIXERS
    )
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
    table |= sparse_layers(c, table["layers"])
    groups, used = c.count("n_group"), c.count("topk_group")
    if groups > 1 and used and used < groups:
        table |= {"expert_groups": groups, "groups_per_token": used}
    if c.kind == "gpt_oss":
        table |= {"linear_bias": True, "qkv_bias": True, "clamped_gate": True}
    if c.count("num_nextn_predict_layers"):
        table["mtp_layers"] = c.whole("num_nextn_predict_layers")
    return table


def _latent(c: Config) -> Table:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    heads = c.whole("num_attention_heads")
    sizes: Table = {name: c.whole(name) for name in names}
    query = sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
    return {"attention": "latent", "q_lora_rank": c.count("q_lora_rank"), "kv_heads": heads, "head_dim": query} | sizes


def _gpt(c: Config) -> Table:
    """gpt2 and what is named like it: layer norms, two matrices an MLP, biases unless switched off."""
    kind = "falcon" if c.kind in _FALCONS else c.kind
    hidden = c.whole("n_embd", "n_embed", "hidden_size", "d_model")  # n_embed: bloom's own files
    heads = c.whole("n_head", "num_attention_heads", "num_heads", "n_heads")
    layers = c.whole("n_layer", "num_hidden_layers", "num_layers", "n_layers")
    inner = c.part("attn_config") if kind == "mpt" and c.get("attn_config") is not None else c
    bias = _gpt_bias(c, kind)
    few = 1 if _one_head(c, kind) else heads
    given = inner.get("num_kv_heads" if kind == "falcon" else "kv_n_heads")
    table: Table = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": inner.whole("num_kv_heads", "kv_n_heads", default=few) if given and few == heads else few,
        "ffn": c.whole(
            "n_inner",
            "ffn_dim",
            "ffn_hidden_size",
            "intermediate_size",
            default=c.whole("expansion_ratio", default=4) * hidden,
        ),
        "gated_mlp": False,
        "norm": "layer_norm",
        "positions": _gpt_positions(inner, kind),
        "tied_embeddings": c.flag("tie_word_embeddings", kind not in _UNTIED_GPTS),
        "vocabulary": c.whole("vocab_size"),
        "sequence_length": c.whole(
            "n_positions",
            "max_position_embeddings",
            "max_seq_len",
            "seq_length",
            default=2048 if kind in ("bloom", "falcon") else None,
        ),
        "linear_bias": bias,
        "qkv_bias": c.flag("attention_bias", True) if kind == "gpt_neox" else bias and kind not in _PLAIN_QKV,
    }
    if kind == "gpt_neox" and c.share("rotary_pct", "partial_rotary_factor") < 1.0:
        table["rotary_share"] = c.share("rotary_pct", "partial_rotary_factor")
    turned = c.count("rotary_dim") if kind in ("gptj", "codegen") else 0
    if 0 < turned < hidden // heads:
        table["rotary_share"] = turned / (hidden // heads)
    return table | (_local(c, layers) if kind == "gpt_neo" else {})


def _gpt_bias(c: Config, kind: str) -> bool:
    if kind == "mpt":
        return not c.flag("no_bias", True)
    return c.flag("bias", False) if kind == "falcon" else c.flag("enable_bias", True) if kind == "opt" else True


def _one_head(c: Config, kind: str) -> bool:
    """Whether all heads share one key and value."""
    if kind == "gpt_bigcode":
        return c.flag("multi_query", True)
    return kind == "falcon" and c.flag("multi_query", True) and not c.flag("new_decoder_architecture", False)


def _gpt_positions(c: Config, kind: str) -> str:
    if kind in ("falcon", "mpt") and c.flag("alibi", kind == "mpt"):
        return "alibi"
    return "alibi" if kind == "bloom" else "rotary" if kind in _TURNED else "learned"


def _local(c: Config, layers: int) -> Table:
    """gpt_neo's attention_types: [[["global", "local"], 12]]."""
    said = c.get("attention_types") or []
    words = [word for part in said if isinstance(part, list) and len(part) == 2 for word in part[0] * int(part[1])]
    c.get("attention_layers")
    kinds = {"global": "full", "local": "window"}
    if set(words) - set(kinds) or (words and len(words) != layers):
        raise SpecError(
            f"{c.path}: attention_types: expected {', '.join(kinds)} for each of {layers} layers, got {str(said)[:60]}"
        )
    if "local" not in words:
        return {}
    return {"window": c.whole("window_size", default=256), "mixers": shortest([kinds[word] for word in words])}


def _encoder(c: Config) -> Table:
    """bert, its kin and vit; a type that is not known and tells segments apart is taken for one of bert's kin."""
    table: Table = {
        "layers": c.whole("num_hidden_layers", "n_layers"),
        "hidden": c.whole("hidden_size", "dim"),
        "heads": c.whole("num_attention_heads", "n_heads"),
        "ffn": c.whole("intermediate_size", "hidden_dim"),
        "gated_mlp": False,
        "norm": "layer_norm",
        "positions": "learned",
        "linear_bias": True,
        "qkv_bias": c.flag("qkv_bias", True),
    }
    if c.count("embedding_size") not in (0, table["hidden"]):
        raise SpecError(
            f"{c.path}: embedding_size: {c.get('embedding_size')} beside hidden_size = {table['hidden']}: an embedding of another "
            "width than the layers is not modelled"
        )
    if c.kind != "vit":
        return table | {
            "architecture": "encoder",
            "tied_embeddings": c.flag("tie_word_embeddings", True),
            "vocabulary": c.whole("vocab_size"),
            "sequence_length": c.whole("max_position_embeddings"),
            "token_types": c.count("type_vocab_size"),
            "head_transform": True,
            "pooler": c.kind == "bert",
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
    **dict.fromkeys(_GPTS, _gpt),
    **dict.fromkeys((*_BERTS, "vit"), _encoder),
    **dict.fromkeys(("t5", "mt5"), _t5),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), lambda c: qwen3_next(c, _either(c), _either(c) is _experts)
    ),
    **dict.fromkeys(("bamba", "granitemoehybrid"), lambda c: mamba_beside_attention(c, _either(c))),
    "nemotron_h": lambda c: nemotron_h(c, _llama),
    "mamba2": mamba2,
    "chatglm": _chatglm,
    "qwen": _qwen,
    "dbrx": _dbrx,
}
