"""The model of a row, from the row's own numbers; what no table prints (norms, biases, positions) comes from our model of
the same shape, else from its style: gated MLPs go with RMS norm and rotary positions, others with GPT's layer norm."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

from pydantic import ValidationError

from simulator.importers.table.row_experts import forced_balance
from simulator.importers.table.row_families import letters, special_model
from simulator.importers.table.row_notes import mean_length, words_said
from simulator.importers.table.row_task import as_trained, refuse_other_tasks
from simulator.importers.table.rows import CannotPlace, Row, count, first_of, flag, number, text
from simulator.importers.vocabulary.names import load_names
from simulator.importers.vocabulary.words import sparse_layers
from simulator.specs import load_all
from simulator.workload.model import Model
from simulator.workload.model_fields import LATENT_FIELDS

__all__ = ["row_model"]

BLANK_VOCABULARY = 50_304
"""Rows of the embedding where a table names none: GPT-2's 50,257 padded to a multiple of 128."""
BLANK_HEAD = 128
BLANK_LATENT = (512, 512, 128, 64, 128)
"""Ranks of queries, of keys and values, widths of a head's two parts and of its values: defaults of Megatron-Core's
MLATransformerConfig (megatron/core/transformer/transformer_config.py)."""


def row_model(row: Row) -> tuple[Model, int, tuple[str, ...]]:
    """Return (model, sequence length [tokens], what was assumed).

    Raises:
        CannotPlace: the row's model is of a kind not modelled, or its sizes are not given.
    """
    model, length, assumed = _row_model(row)
    model, assumed = as_trained(row, model, assumed)
    mean = mean_length(row)
    if mean is not None and mean < length:
        length, assumed = mean, (*assumed, f"sequences of {mean} tokens (the row's own words)")
    known = load_names().activation_of(text(row, "model"), text(row, "framework"))
    if known is None or model.gated_mlp:
        return model, length, assumed
    said = f"{known.activation} written out ({known.source})"
    return model.model_copy(update={"activation": known.activation}), length, (*assumed, said)


def _row_model(row: Row) -> tuple[Model, int, tuple[str, ...]]:
    refuse_other_tasks(row)
    special_one = special_model(row)
    if special_one is not None:
        return special_one[0], count(row, "seq_len") or special_one[0].sequence_length, special_one[1]
    _refuse_other_kinds(row)
    assumed: list[str] = []
    layers, hidden, length = (count(row, name) for name in ("arch_layers", "hidden", "seq_len"))
    missing = [n for n, v in (("arch_layers", layers), ("hidden", hidden), ("seq_len", length)) if v is None]
    if missing or layers is None or hidden is None or length is None:
        name = text(row, "model")
        unknown = f", and no model is called {name[:60]!r} (dtsim list models)" if name and len(missing) > 1 else ""
        raise CannotPlace(f"the row gives no {', '.join(missing)}{unknown}", counts=False)
    heads = count(row, "heads") or max(1, hidden // BLANK_HEAD)
    if not text(row, "heads"):
        assumed.append(f"heads = {heads} (of {BLANK_HEAD} each)")
    gated = flag(row, "gated_mlp") or False
    ffn = count(row, "ffn_hidden") or 4 * hidden
    if not text(row, "ffn_hidden"):
        assumed.append(f"ffn_hidden = {ffn} (4 x hidden)")
    vocabulary = count(row, "vocab") or _blank_vocabulary(row, assumed)
    latent = text(row, "attn_type").lower() == "mla"
    kv_heads = heads if latent else count(row, "kv_heads") or heads
    head_dim = count(row, "head_dim") or max(1, hidden // heads)
    special = _experts(row, hidden, layers, assumed)
    special |= _latent(hidden, heads, assumed) if latent else {"head_dim": head_dim}
    name = text(row, "model") or "unnamed"
    style, why = _style((hidden, heads, kv_heads, ffn, gated), name)
    assumed += [why] if why else []
    if _WINDOWED.search(text(row, "attn_type").lower()) and not (style and style.window):
        assumed.append("attention to all tokens (the row gives no window)")
    special |= _defaults(style, name, special.get("experts", 0), length, assumed) | _prediction(
        row, style, layers, assumed
    )
    if latent:
        special.pop("qk_norm", None)  # latents have norms of their own
    tied, told = flag(row, "tied_emb"), _layer_told(row)
    if told:
        assumed = [one for one in assumed if one != why]
        special = {name: value for name, value in special.items() if not (told.get("positions") and "rotary" in name)}
    kind: dict[str, Any] = {
        "norm": style.norm if style else ("rms_norm" if gated else "layer_norm"),
        "positions": style.positions if style else ("rotary" if gated else "learned"),
        "linear_bias": style.linear_bias if style else not gated,
        "qkv_bias": not latent and (style.qkv_bias if style else not gated),
    }
    try:
        model = Model(
            name=name[:200],
            family=style.family if style else "unnamed",
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            ffn=ffn,
            gated_mlp=gated,
            tied_embeddings=tied if tied is not None else not gated,
            vocabulary=vocabulary,
            sequence_length=length,
            **kind | special | told,
        )
    except ValidationError as error:
        raise CannotPlace(f"model {name[:60]!r}: {first_of(error)}", counts=False) from None
    return model, length, tuple(assumed)


_TOLD: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"\brotary (positions|embeddings?)|\brope\b", {"positions": "rotary"}),
    (r"\brotary (positions|embedding) of a quarter", {"rotary_share": 0.25}),
    (r"\blearned positions\b", {"positions": "learned"}),
    (r"\balibi\b", {"positions": "alibi"}),
    (r"\brms[- ]?norms?\b", {"norm": "rms_norm"}),
    (r"\blayer[- ]?norms?\b", {"norm": "layer_norm"}),
    (r"\b(no|without) bias(es)?\b", {"linear_bias": False, "qkv_bias": False}),
)
"""Words of a row's note on its model's layers, and what they say of it."""


def _layer_told(row: Row) -> dict[str, Any]:
    """Return what a row's note says of norms, positions and biases, as fields of a model.

    >>> _layer_told({"quality_note": "LayerNorm without biases; rotary positions"})
    {'positions': 'rotary', 'norm': 'layer_norm', 'linear_bias': False, 'qkv_bias': False}
    """
    note = text(row, "quality_note").lower()
    return {field: value for words, fields in _TOLD if re.search(words, note) for field, value in fields.items()}


def _blank_vocabulary(row: Row, assumed: list[str]) -> int:
    """Return the vocabulary where the row names none: what is known of its source, else GPT-2's."""
    known = load_names().fact(text(row, "source"), "vocabulary")
    vocabulary = (known and known.vocabulary) or BLANK_VOCABULARY
    assumed.append(f"vocabulary = {vocabulary}{f' ({known.source})' if known else ''}")
    return vocabulary


def _refuse_other_kinds(row: Row) -> None:
    kind = text(row, "attn_type").lower()
    if kind not in ("", "mha", "gqa", "mqa", "mla") and not _WINDOWED.search(kind):
        raise CannotPlace(f"attention of type {kind!r} is not modelled")


def _experts(row: Row, hidden: int, layers: int, assumed: list[str]) -> dict[str, Any]:
    """Fields of a mixture of experts; none for a dense model."""
    experts = number(row, "moe_experts") or 0
    if experts <= 1:
        return {}
    per_token, width = count(row, "moe_topk"), count(row, "moe_ffn_hidden")
    if per_token is None or width is None:
        raise CannotPlace("a mixture of experts needs moe_topk and moe_ffn_hidden", counts=False)
    dense, every = sparse_layers(text(row, "moe_layer_freq")) or (int(number(row, "moe_dense_layers") or 0), 1)
    if not text(row, "moe_dense_layers") and not text(row, "moe_layer_freq"):
        ours = (m for m in load_all("models", Model).values() if (m.hidden, m.experts) == (hidden, experts))
        known = next(ours, None)
        dense, every = (min(known.dense_layers, layers - 1), known.moe_every) if known else (0, 1)
        assumed.append(f"moe_dense_layers = {dense}{f', experts in every {every}th layer' if every > 1 else ''}")
    if dense >= layers:
        raise CannotPlace(f"moe_dense_layers = {dense} leave none of the {layers} layers with experts", counts=False)
    drops = _capacity(row)
    if drops:
        assumed.append("experts take equal rows and drop the rest")
    elif forced_balance(row):
        assumed.append("experts equally popular (balanced by force)")
    return {
        **drops,
        "experts": int(experts),
        "experts_per_token": per_token,
        "expert_ffn": width,
        "shared_expert_ffn": int(number(row, "moe_shared_ffn") or 0),
        "dense_layers": dense,
        "moe_every": every,
    }


def _capacity(row: Row) -> dict[str, float]:
    """Rows that an expert takes, in shares of an even distribution, where a row's words tell that the rest is dropped.

    >>> _capacity({"quality_note": "capacity factor 1.25"}), _capacity({"model": "qwen3-30b-a3b [tokendrop]"}), _capacity({})
    ({'capacity_factor': 1.25}, {'capacity_factor': 1.0}, {})
    """
    said = re.search(r"capacity[ _-]factor(?: of|=|:)? ?(\d+(?:\.\d+)?)", words_said(row))
    if said and 0 < float(said.group(1)) <= 100:
        return {"capacity_factor": float(said.group(1))}
    return {"capacity_factor": 1.0} if "tokendrop" in letters(text(row, "model")) else {}


def _latent(hidden: int, heads: int, assumed: list[str]) -> dict[str, Any]:
    """Ranks and widths of latent attention, which tables do not print: of our model with this hidden and heads, else usual ones."""
    for model in load_all("models", Model).values():
        if model.attention == "latent" and (model.hidden, model.heads) == (hidden, heads):
            return {"attention": "latent", **{name: getattr(model, name) for name in LATENT_FIELDS}}
    assumed.append(f"latent attention of {', '.join(map(str, BLANK_LATENT))} (Megatron-Core's defaults)")
    return {"attention": "latent", **dict(zip(LATENT_FIELDS, BLANK_LATENT, strict=True))}


_WINDOWED = re.compile(r"swa|sliding|local|window")
"""Kinds of attention whose windows only a model of ours tells; without one all tokens are attended to."""

Layer = tuple[int, int, int, int, bool]
"""Hidden, heads, key/value heads, inner width, and whether the MLP is gated."""


def _style(layer: Layer, name: str) -> tuple[Model | None, str]:
    """Our model with the same layer (its number of layers may differ), the one called most alike; else what the family that the name
    begins with has beside sizes; else what goes with the kind of MLP."""
    models, said = _by_shape().get(layer), letters(name)
    if models:
        return min(models, key=lambda m: (not _called(m, said), _odd(m), m.name)), ""
    relative = _relative(layer, said)
    if relative is not None:
        return relative, f"norms, positions and biases as in {relative.name} (no model of ours has this layer)"
    norm, positions = ("RMS norm", "rotary") if layer[-1] else ("layer norm with biases", "learned")
    return None, f"{norm} and {positions} positions (no model of ours has this layer)"


def _relative(layer: Layer, said: str) -> Model | None:
    """The model nearest in width of the family that a name begins with, without what its own size decides: windows and predictions."""
    ours = [
        model
        for models in _by_shape().values()
        for model in models
        if said.startswith(letters(model.family)) and model.gated_mlp == layer[-1]
    ]
    if not ours:
        return None
    best = min(ours, key=lambda m: (-len(m.family), abs(math.log(m.hidden / layer[0])), m.name))
    return best.model_copy(update={"window": 0, "mixers": (), "mtp_layers": 0, "experts": 0, "expert_groups": 0})


def _defaults(style: Model | None, name: str, experts: int, length: int, assumed: list[str]) -> dict[str, Any]:
    """What no table prints of a layer: more norms, and windows, which only a model that is called alike has."""
    if style is None:
        return {}
    out: dict[str, Any] = {name: True for name in ("qk_norm", "post_norms", "clamped_gate") if getattr(style, name)}
    if style.rotary_share < 1.0:
        out["rotary_share"] = style.rotary_share
    if style.rotary_scale != 1.0:
        out["rotary_scale"] = style.rotary_scale
    if style.expert_groups and style.experts == experts:
        out |= {"expert_groups": style.expert_groups, "groups_per_token": style.groups_per_token}
    if style.window and _called(style, letters(name)):
        out |= {"window": style.window, "mixers": style.mixers}
        if style.window < length:
            assumed.append(f"attention windows as in {style.name}")
    return out


def _prediction(row: Row, style: Model | None, layers: int, assumed: list[str]) -> dict[str, Any]:
    """Multi-token prediction: as the row's notes say; else as the whole model has it, in codes that train it (Megatron-Core)."""
    said = re.search(r"mtp[-_]num[-_]layers\s*[=:]\s*(\d+)", text(row, "quality_note").lower())
    if said:
        return {"mtp_layers": int(said.group(1))} if int(said.group(1)) else {}
    names, code = load_names(), text(row, "framework")
    framework = names.find("frameworks", code) or names.framework_by_words(code) or ""
    if style is None or not style.mtp_layers or layers != style.layers or framework not in ("megatron_core", "nemo"):
        return {}
    assumed.append(f"multi-token prediction as in {style.name}")
    return {"mtp_layers": style.mtp_layers}


def _odd(model: Model) -> bool:
    """Whether a layer differs from the plain one of its sizes, so that a row must name the model to mean it."""
    more = model.qk_norm or model.post_norms or model.window > 0
    return more or model.positions not in ("learned", "rotary") or model.capacity_factor > 0


def _called(model: Model, said: str) -> bool:
    return any(letters(n) in said or said in letters(n) for n in (model.name, *model.aliases)) or model.family in said


@functools.lru_cache(maxsize=1)
def _by_shape() -> dict[Layer, list[Model]]:
    found: dict[Layer, list[Model]] = {}
    for model in load_all("models", Model).values():
        if model.architecture == "transformer" and not set(model.layer_mixers) & {"mamba2", "delta", "none"}:
            shape = (model.hidden, model.heads, model.kv_heads, model.ffn, model.gated_mlp)
            found.setdefault(shape, []).append(model)
    return found
