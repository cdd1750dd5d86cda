"""Hugging Face `config.json`: the shape of a model.

The file is data: it is parsed, checked key by key, and nothing in it is run.  What each family calls its sizes is in
`hugging_face_shapes`; of a model of images or sounds and text the text's part is read (`text_config`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulator.errors import SpecError, nearest_few
from simulator.importers.base import Importer
from simulator.importers.document import Document, open_document
from simulator.importers.hugging_face_config import WAY_OUT, Config
from simulator.importers.hugging_face_shapes import class_defaults, shape_of, types
from simulator.importers.hugging_face_traits import fills_masks, like_bert
from simulator.importers.imported import Findings, brief
from simulator.importers.trees import Tree
from simulator.specs import validate_spec
from simulator.workload.model import Model

__all__ = ["KNOWN_TYPES", "HuggingFaceConfig", "model_from_config"]

KNOWN_TYPES = types()
"""Values of `model_type` that can be read."""
_TEXT = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where models of several kinds of input keep the language model; the last holds a text_config of its own."""
_SIZES = {"num_hidden_layers", "n_layer", "num_layers"}
_LLAMA_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_OTHER_LAYERS = re.compile(r"mamba|rwkv|jamba|zamba|bamba|recurrent|whisper|clip|wav2vec|lfm|falcon_h|retnet|xlstm")
"""Types whose layers are of other kinds, whatever names their sizes have."""
_CARRIED = re.compile(r"mamba_.*|ssm_.*|linear_attn_config|attn_type_list|layers_block_type|hybrid_.*|conv_L_cache")
"""Keys of files in which some layers carry a state; a list of ones says that none does (MiniMax)."""
_NO_EFFECT = re.compile(
    r"_?name_or_path|architectures|auto_map|.*_token_id|.*_token_index|torch_dtype|dtype|transformers_version|use_cache|"
    r".*initializer.*|.*_eps|.*_epsilon|rope_.*|rotary_emb_base|.*dropout.*|.*_pdrop|hidden_act|hidden_activation|activation_function|"
    r"mlp_hidden_act|pretraining_tp|model_type|output_.*|return_dict|is_(encoder_decoder|decoder)|summary_.*|task_specific_params|"
    r"id2label|label2id|problem_type|.*_scaling(_factor)?|.*_multiplier|logit_scale|.*soft_?cap.*|query_pre_attn_scalar|"
    r"router_.*|.*_loss_(coef|alpha).*|scoring_func|norm_topk_prob|topk_method|seq_aux|.*jitter.*|.*swiglu_limit|"
    r"quantization_config|cache_implementation|layer_norm_.*|rms_norm.*|max_window_layers|classifier_dropout|"
    r"swiglu_alpha|original_max_position.*|no_rope_.*|attn_scale|attn_temperature.*|floor_scale|qk_head_dim|relative_attention_.*|"
    r"dense_act_fn|scale_decoder.*|init_std|activation|_?sliding_window_pattern|pooler_.*|encoder_stride|moe_norm_min|num_image_tokens|"
    r"use_bidirectional_attention|moe_layer_end_index|qkv_bias|use_bias|do_layer_norm_before|time_step_.*|"
    r"gradient_checkpointing|n_ctx|scale_attn.*|reorder.*|mrope.*|attn_implementation|_attn_implementation.*|ep_size"
)
"""Keys that change neither time nor memory of a step as modelled."""


class HuggingFaceConfig(Importer):
    """A `config.json` of the transformers library."""

    name = "hugging_face"
    title = "Hugging Face config.json"
    aliases = ("huggingface", "transformers")

    def recognises(self, document: Document) -> int:
        """Say whether the file is a table with a model_type."""
        data = document.table
        if document.form != "json":
            return 0
        said = isinstance(data.get("model_type"), str) or any(isinstance(data.get(key), dict) for key in _TEXT)
        return 3 if said else 1 if set(_LLAMA_NAMES) <= set(data) else 0

    def read(self, document: Document) -> Findings:
        """Return the table [model] that the file describes.

        Raises:
            SpecError: no JSON object, a model_type that cannot be read, or a shape that cannot be.
        """
        tree = document.tree_of("one JSON object with model_type, hidden_size, ...")
        findings = Findings(self.name)
        outer, inner = _language_model(tree.data)
        config = Config(_type_of(inner, document.place), document.place, _filled(inner, tree.data, outer, findings))
        table = {"name": _name(tree.data, document), "family": config.kind} | shape_of(config)
        validate_spec(table, Model, f"{document.place} [model]")
        _report(table, config, outer, tree, findings)
        if config.kind == "mamba2":
            why = "a state-space model limits no sequence, and the file says none"
            findings.assume("model.sequence_length", table["sequence_length"], why)
        if config.kind not in KNOWN_TYPES:
            findings.assume(
                "model.family",
                config.kind,
                f"not a known model_type: its sizes are read by the names that {'bert' if like_bert(inner) else 'llama'} uses",
            )
            if fills_masks(inner):
                findings.assume("model.architecture", "encoder", "its class predicts masked tokens (ForMaskedLM)")
        return findings


def model_from_config(path: str | Path) -> dict[str, Any]:
    """Return the table [model] of a job for a local config.json, checked by the rules of `Model`.

    Raises:
        SpecError: no such file, no JSON object, a model_type that cannot be read, or a shape that cannot be.
    """
    return HuggingFaceConfig().read(open_document(path)).tables["model"]


def _language_model(data: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return (keys from the top to the language model, its table)."""
    path: tuple[str, ...] = ()
    while len(path) < 3 and (data.get("model_type") not in KNOWN_TYPES or not _SIZES & set(data)):
        key = next((key for key in _TEXT if isinstance(data.get(key), dict)), None)
        if key is None:
            break
        path, data = (*path, key), data[key]
    return path, data


def _type_of(config: dict[str, Any], place: str) -> str:
    """The model_type, or that a shape by llama's names will do."""
    kind = config.get("model_type")
    named = isinstance(kind, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", kind)
    sizes = set(config) | ({"intermediate_size"} if "moe_intermediate_size" in config else set())
    likely = set(_LLAMA_NAMES) <= sizes and named and not _OTHER_LAYERS.search(str(kind))
    if config.get("hidden_size_per_layer_input"):
        raise SpecError(
            f"{place}: hidden_size_per_layer_input = {str(config['hidden_size_per_layer_input'])[:20]}: embeddings of each layer are "
            f"not modelled. {WAY_OUT}"
        )
    if kind in KNOWN_TYPES:
        return str(kind)
    other = next(
        (key for key, value in config.items() if _CARRIED.fullmatch(key) and value and not _all_ones(value)), None
    )
    if likely and other is not None:
        raise SpecError(
            f"{place}: model_type = {str(kind)[:60]!r} is not known, and {other} says that some of its layers carry a state along the "
            f"sequence in place of attention. {WAY_OUT}"
        )
    if likely:
        return str(kind)
    near = ", ".join(nearest_few(str(kind), KNOWN_TYPES))
    lacks = [name for name in _LLAMA_NAMES if name not in sizes]
    by_name = f", nor are its sizes under llama's names: it has no {', '.join(lacks)}" if lacks else ""
    raise SpecError(
        f"{place}: model_type = {str(kind)[:60]!r} is none of the {len(KNOWN_TYPES)} that are known (nearest: {near}){by_name}. {WAY_OUT}"
    )


def _all_ones(value: Any) -> bool:
    return isinstance(value, list) and all(one == 1 for one in value)


def _filled(
    config: dict[str, Any], whole: dict[str, Any], outer: tuple[str, ...], findings: Findings
) -> dict[str, object]:
    """A language model inside another is saved without what equals its class's defaults: those are put back."""
    if not outer:
        return config
    given = {key: value for key, value in class_defaults(str(config.get("model_type"))).items() if key not in config}
    for key, value in given.items():
        findings.assumed_key(".".join((*outer, key)), value, "the default of its class in the transformers library")
    if "tie_word_embeddings" not in config and "tie_word_embeddings" in whole:
        given["tie_word_embeddings"] = whole["tie_word_embeddings"]
    return {**config, **given}


def _name(config: dict[str, Any], document: Document) -> str:
    """The name the file gives, else its own; of a config.json, as every model has one, that of its folder."""
    given = config.get("_name_or_path")
    known = isinstance(given, str) and given.strip("./ ")
    own = document.stem if document.stem.lower() != "config" else Path(document.place).resolve().parent.name
    text = str(given) if known else own
    text = "".join(c if c.isalnum() and c.isascii() else "_" for c in text.rstrip("/").split("/")[-1].lower())
    return text.strip("_")[:80] or "model"


def _report(table: dict[str, Any], config: Config, outer: tuple[str, ...], tree: Tree, findings: Findings) -> None:
    """Put the table, and say which keys of the file made it and which did not."""
    for field, value in table.items():
        findings.put(f"model.{field}", value, tree.place_of(outer))
    level: Any = tree.data
    for depth in range(len(outer) + 1):
        path = outer[:depth]
        inside = depth == len(outer)
        for key, value in level.items():
            if (inside and key in config.seen) or (not inside and key in (outer[depth], "tie_word_embeddings")):
                continue
            place, text = tree.place_of((*path, key)), f"{'.'.join((*path, key))}: {brief(value)}"
            if value is None or _NO_EFFECT.fullmatch(key) or value in (False, [], {}):
                findings.ignore(place, text)
            else:
                findings.skip(place, text + (" (only the language model is modelled)" if not inside else ""))
        level = level[outer[depth]] if not inside else level
    for name, part in config.parts.items():
        for key in (key for key in part.data if key not in part.seen):
            path = (*outer, name, key)
            findings.skip(tree.place_of(path), f"{'.'.join(path)}: {brief(part.data[key])}")
