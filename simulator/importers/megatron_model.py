"""Megatron's arguments of a model -> the fields of ours; the same names stand in its command lines, YAML files and NeMo's.

Defaults are those of NVIDIA/Megatron-LM, megatron/training/arguments.py and core/transformer/transformer_config.py (2026-08).
"""

from __future__ import annotations

from simulator.importers.arithmetic import whole_numbers
from simulator.importers.settings import Entry, Settings, whole_of, word_of

__all__ = ["PATTERN", "read_model", "usual_tokenizer"]

_WHOLE = {
    "layers": ("num_layers", "encoder_num_layers", "decoder_num_layers"),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "vocabulary": ("padded_vocab_size", "pad_vocab_size_to", "vocab_size"),
    "sequence_length": ("max_position_embeddings",),
}
_LATENT = {"kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
"""Megatron's names of latent attention and their defaults; the query's rank has none on a command line."""
_OURS = {"qk_head_dim": "qk_nope_head_dim", "qk_pos_emb_head_dim": "qk_rope_head_dim"}
_POSITIONS = {
    "learned_absolute": "learned",
    "rope": "rotary",
    "none": "none",
    "yarn": "rotary",
    "relative": "relative_bias",
    "mrope": "rotary",
    "rotary": "rotary",
    "absolute": "learned",
    "alibi": "alibi",
}
_VOCABULARIES = {
    "GPT2BPETokenizer": ("GPT-2's", 50257),
    "BertWordPieceLowerCase": ("BERT's uncased", 30522),
    "BertWordPieceCase": ("BERT's cased", 28996),
}
_T5 = "encoder_decoder"
_PROGRAMS = {
    "pretrain_gpt.py": ("", "GPT2BPETokenizer"),
    "pretrain_gpt_core.py": ("", "GPT2BPETokenizer"),
    "pretrain_bert.py": ("encoder", "BertWordPieceLowerCase"),
    "pretrain_t5.py": (_T5, "BertWordPieceLowerCase"),
}
"""Megatron's programs -> the architecture that they train ("": a decoder), and the tokenizer that they take when none is named."""
PATTERN = {
    "M": ("mamba2", False, False),
    "*": ("full", False, False),
    "-": ("none", True, False),
    "E": ("none", True, True),
}
"""Letter of a layer in a pattern of hybrids -> its mixer, whether it has an MLP, and whether that is one of experts."""


def usual_tokenizer(launched: str) -> str:
    """Return the type of tokenizer that a program of Megatron's takes when none is named; "" when that is not known."""
    return _PROGRAMS.get(launched, ("", ""))[1]


def read_model(
    settings: Settings, defaults: str = "Megatron's default", launched: str = "", tokenizer: str = ""
) -> None:
    """Put the model's fields that the settings decide.

    Args:
        defaults: whose defaults fill what a shape needs, for reports.
        launched: the program that is launched, which decides the architecture.
        tokenizer: its type, where it does not stand among the settings.

    Raises:
        SpecError: a size that is none.
    """
    architecture = _PROGRAMS.get(launched, ("", ""))[0]
    stacks = (settings.take("encoder_num_layers"), settings.take("decoder_num_layers")) if architecture == _T5 else ()
    for field, names in _WHOLE.items():
        settings.put_whole(f"model.{field}", *names)
    if not settings.get("model.hidden") and not settings.get("model.layers"):
        return
    settings.assume("model.family", "megatron", f"Megatron builds a {architecture or 'GPT'}")
    if architecture:
        _architecture(settings, architecture, stacks, launched)
    _mlp(settings, defaults)
    _attention(settings, defaults)
    _embeddings(settings, defaults, tokenizer)
    _experts(settings)
    _pattern(settings)
    count = settings.whole("mtp_num_layers", least=0)
    if count:
        settings.say("model.mtp_layers", count, "mtp_num_layers")


def _architecture(settings: Settings, architecture: str, stacks: tuple[Entry | None, ...], launched: str) -> None:
    """What BERT and T5 have beside layers, as Megatron builds them."""
    settings.assume("model.architecture", architecture, f"what {launched} trains")
    if architecture != _T5:
        for field, value in (("token_types", 2), ("head_transform", True), ("pooler", True)):
            settings.assume(f"model.{field}", value, "Megatron's BERT has them")
        return
    if settings.get("model.layers"):
        settings.assume(
            "model.encoder_layers", settings.get("model.layers"), "Megatron's default of encoder_num_layers: num_layers"
        )
    for field, entry in zip(("encoder_layers", "layers"), stacks, strict=True):
        if entry is not None:
            settings.put(f"model.{field}", entry, whole_of(entry))
    if settings.put_whole("model.target_length", "decoder_seq_length") is None:
        settings.assume("model.target_length", 128, "decoder_seq_length is not said")


def _put_default(settings: Settings, field: str, value: object, why: str) -> None:
    settings.assume(f"model.{field}", value, why)


def _mlp(settings: Settings, defaults: str) -> None:
    activation = (settings.word("activation") or "").lower()
    gated = settings.flag("swiglu", "gated_linear_unit", "quick_geglu") or "glu" in activation
    settings.ignore("openai_gelu", "activation_func", "bias_activation_fusion")
    if gated:
        settings.say("model.gated_mlp", True, "swiglu", "gated_linear_unit", "quick_geglu", "activation")
    else:
        _put_default(settings, "gated_mlp", False, f"{defaults}: no swiglu")
    hidden = settings.get("model.hidden")
    if settings.put_whole("model.ffn", "ffn_hidden_size") is None and hidden:
        if gated:
            width = max(64, int(4 * hidden * 2 / 3) // 64 * 64)
            _put_default(settings, "ffn", width, f"{defaults} with swiglu: 4 x hidden x 2/3, down to a multiple of 64")
        else:
            _put_default(settings, "ffn", 4 * hidden, f"{defaults}: 4 x hidden")
    normalization = settings.take("normalization")
    if normalization is None:
        _put_default(settings, "norm", "layer_norm", f"{defaults}: LayerNorm")
    else:
        rms = "rms" in word_of(normalization).lower()
        settings.put("model.norm", normalization, "rms_norm" if rms else "layer_norm")


def _attention(settings: Settings, defaults: str) -> None:
    no_bias = settings.flag("disable_bias_linear")
    bias = settings.flag("add_bias_linear", "bias")
    linear = not no_bias if no_bias is not None else True if bias is None else bias
    if no_bias is None and bias is None:
        _put_default(settings, "linear_bias", True, f"{defaults}: linear layers have biases")
    else:
        settings.say("model.linear_bias", linear, "disable_bias_linear", "add_bias_linear", "bias")
    qkv = settings.flag("add_qkv_bias", "qkv_bias")
    if qkv is None:
        _put_default(settings, "qkv_bias", linear, "as linear layers have them: no add_qkv_bias")
    else:
        settings.say("model.qkv_bias", qkv or linear, "add_qkv_bias")
    grouped = settings.flag("group_query_attention")
    groups = settings.take("num_query_groups")
    if groups is not None and grouped is not False:
        settings.put("model.kv_heads", groups, whole_of(groups))
    elif groups is not None:
        settings.refuse(groups, "group_query_attention is off")
    settings.put_whole("model.head_dim", "kv_channels")
    if settings.flag("qk_layernorm"):
        settings.say("model.qk_norm", True, "qk_layernorm")
    if settings.flag("multi_latent_attention"):
        _latent(settings, defaults)
    _window(settings)


def _latent(settings: Settings, defaults: str) -> None:
    settings.say("model.attention", "latent", "multi_latent_attention")
    for name in ("qk_norm", "head_dim", "kv_heads"):
        if settings.get(f"model.{name}"):
            settings.drop(f"model.{name}", "follows from multi_latent_attention")
    settings.assume("model.qkv_bias", False, "latent attention has none")
    settings.assume("model.q_lora_rank", 0, f"{defaults}: queries straight from the hidden state")
    settings.put_whole("model.q_lora_rank", "q_lora_rank")
    for name, default in _LATENT.items():
        field = f"model.{_OURS.get(name, name)}"
        if settings.put_whole(field, name) is None:
            settings.assume(field, default, defaults)


def _window(settings: Settings) -> None:
    entry = settings.take("window_size")
    every = settings.take("window_attn_skip_freq")
    if entry is None:
        return
    text = "".join(map(str, entry.value)) if isinstance(entry.value, list) else str(entry.value)
    first = text.strip("()[] ").split(",")[0]
    if not first.isdigit():
        settings.refuse(entry, "expected (tokens back, tokens ahead)")
        return
    settings.put("model.window", entry, int(first) + 1)
    if every is not None:
        pattern = whole_numbers(str(every.value))
        number = str(every.value)
        mixers = ["window" if keep else "full" for keep in pattern] if pattern else []
        if not mixers and number.isdigit() and int(number) > 1:
            mixers = ["window"] * (int(number) - 1) + ["full"]
        if mixers:
            settings.put("model.mixers", every, mixers)
        else:
            settings.refuse(every)


def _embeddings(settings: Settings, defaults: str, tokenizer: str) -> None:
    untied = settings.flag("untie_embeddings_and_output_weights")
    shared = settings.flag("share_embeddings_and_output_weights")
    if untied is None and shared is None:
        _put_default(settings, "tied_embeddings", True, f"{defaults}: embedding and output share weights")
    else:
        settings.say(
            "model.tied_embeddings",
            not untied if untied is not None else bool(shared),
            "untie_embeddings_and_output_weights",
            "share_embeddings_and_output_weights",
        )
    kind = settings.take("position_embedding_type")
    rotary = settings.flag("use_rotary_position_embeddings")
    none = settings.flag("no_position_embedding")
    word = word_of(kind) if kind is not None else "rope" if rotary else "none" if none else ""
    if word in _POSITIONS:
        place = settings.said("position_embedding_type", "use_rotary_position_embeddings", "no_position_embedding")
        settings.findings.put("model.positions", _POSITIONS[word], place)
    elif kind is not None:
        settings.refuse(kind, "known: " + ", ".join(_POSITIONS))
    else:
        _put_default(settings, "positions", "learned", f"{defaults}: learned positions")
    share = settings.number("rotary_percent", "rotary_percentage")
    if share is not None and 0 < share < 1:
        settings.say("model.rotary_share", share, "rotary_percent")
    _vocabulary(settings, tokenizer)


def _vocabulary(settings: Settings, usual: str) -> None:
    """A vocabulary that the arguments do not count is known only of tokenizers of one model."""
    if settings.get("model.vocabulary"):
        settings.ignore("tokenizer_type", "vocab_file", "merge_file", "tokenizer_model")
        return
    kind = settings.take("tokenizer_type")
    word = word_of(kind) if kind is not None else usual
    if word in _VOCABULARIES:
        whose, size = _VOCABULARIES[word]
        settings.assume("model.vocabulary", size, f"{word} reads {whose} vocabulary of {size:,}")
        settings.ignore("vocab_file", "merge_file")
    elif kind is not None:
        settings.refuse(kind, "how many words it has is not said: --set model.vocabulary=N")


def _experts(settings: Settings) -> None:
    experts = settings.put_whole("model.experts", "num_experts", "num_moe_experts", least=0)
    if not experts:
        if experts == 0:
            settings.drop("model.experts", "no experts")
        return
    if settings.put_whole("model.experts_per_token", "moe_router_topk") is None:
        settings.assume("model.experts_per_token", 2, "Megatron's default of moe_router_topk")
    settings.put_whole("model.expert_ffn", "moe_ffn_hidden_size")
    settings.put_whole("model.shared_expert_ffn", "moe_shared_expert_intermediate_size")
    groups = settings.whole("moe_router_num_groups")
    used = settings.whole("moe_router_group_topk")
    if groups and used and used < groups:
        settings.say("model.expert_groups", groups, "moe_router_num_groups")
        settings.say("model.groups_per_token", used, "moe_router_group_topk")
    capacity = settings.number("moe_expert_capacity_factor")
    if capacity is not None and capacity > 0:
        settings.say("model.capacity_factor", capacity, "moe_expert_capacity_factor")
    which = settings.take("moe_layer_freq", "expert_interval")
    if which is not None:
        _sparse_layers(settings, which)


def _sparse_layers(settings: Settings, entry: Entry) -> None:
    """moe_layer_freq: every n-th layer, or a list with 1 where a layer has experts."""
    layers = settings.get("model.layers") or 0
    text = str(entry.value)
    if text.isdigit():
        every = int(text)
        if every > 1:
            settings.assume(
                "model.moe_every",
                every,
                "Megatron gives experts to the first of so many layers, we to the last of them",
            )
        return
    pattern = [int(bool(item)) for item in entry.value] if isinstance(entry.value, list) else whole_numbers(text)
    if not pattern or (layers and len(pattern) != layers) or 1 not in pattern:
        settings.refuse(entry, "expected a number, or a list with an entry per layer")
        return
    dense = pattern.index(1)
    for every in range(1, len(pattern) + 1):
        start = next(
            (d for d in (0, dense) if pattern == [int(i >= d and (i + 1) % every == 0) for i in range(len(pattern))]),
            None,
        )
        if start is not None:
            if start:
                settings.put("model.dense_layers", entry, start)
            if every > 1:
                settings.put("model.moe_every", entry, every)
            return
    settings.refuse(entry, "experts in layers without a regular order are not modelled")


def _pattern(settings: Settings) -> None:
    """hybrid_layer_pattern: a letter per layer, M a Mamba-2 mixer, * attention, - an MLP, E experts
    (core/ssm/mamba_hybrid_layer_allocation.py)."""
    entry = settings.take("hybrid_layer_pattern", "hybrid_override_pattern")
    if entry is None:
        return
    letters = word_of(entry).split("/")[0].replace("|", "")
    if not letters or set(letters) - set(PATTERN):
        settings.refuse(entry, "known letters: " + " ".join(PATTERN))
        return
    if {"-", "E"} <= set(letters):
        settings.refuse(entry, "experts in layers without a regular order are not modelled")
        return
    stack = settings.take("spec")
    if stack is not None and "mamba_stack_spec" not in str(stack.value):
        settings.refuse(stack)
    settings.put("model.layers", entry, len(letters))
    settings.put("model.mixers", entry, [PATTERN[letter][0] for letter in letters])
    settings.put("model.mlps", entry, [PATTERN[letter][1] for letter in letters])
    sizes = {
        "ssm_state": ("mamba_state_dim", 128),
        "ssm_head_dim": ("mamba_head_dim", 64),
        "ssm_groups": ("mamba_num_groups", 8),
        "conv_width": ("mamba_d_conv", 4),
    }
    if "M" not in letters:
        return
    for field, (name, default) in sizes.items():
        if settings.put_whole(f"model.{field}", name) is None:
            settings.assume(f"model.{field}", default, "Megatron's default")
    if settings.put_whole("model.ssm_heads", "mamba_num_heads") is None and settings.get("model.hidden"):
        heads = 2 * settings.get("model.hidden") // settings.get("model.ssm_head_dim")
        settings.assume("model.ssm_heads", heads, "Megatron's default: 2 x hidden / mamba_head_dim")
