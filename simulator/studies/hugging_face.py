"""Read a model's shape from a Hugging Face `config.json` of the llama and gpt2 families.

The file is data: it is parsed, checked key by key, and nothing in it is run.

    llama, mistral, qwen2                          gpt2
    num_hidden_layers, hidden_size,                n_layer, n_embd, n_head,
    num_attention_heads, num_key_value_heads,      n_inner (absent: 4 x n_embd),
    intermediate_size, max_position_embeddings     n_positions

Source: the configuration classes of the transformers library (version 5).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.specs import validate_spec
from simulator.workload.model import Model

__all__ = ["KNOWN_TYPES", "model_from_config"]

KNOWN_TYPES = ("gpt2", "llama", "mistral", "qwen2")
"""Values of `model_type` that can be read."""

_LARGEST = 2**20


def model_from_config(path: str | Path) -> dict[str, Any]:
    """Return the table [model] of a job for a local config.json, checked by the rules of `Model`.

    Raises:
        SpecError: no such file, no JSON object, a model_type that cannot be read, or a shape that cannot be.
    """
    config = _read(path)
    kind = config.get("model_type")
    if kind not in KNOWN_TYPES:
        raise SpecError(
            f"{path}: model_type = {str(kind)[:60]!r} cannot be read; known: {', '.join(KNOWN_TYPES)}. Way out: dtsim "
            "init with a named model, then change its numbers in a table [model]"
        )
    table = _gpt2(config, path) if kind == "gpt2" else _llama(config, path)
    table = {"name": _name(config, path), "family": str(kind)} | table
    validate_spec(table, Model, str(path))
    return table


def _read(path: str | Path) -> dict[str, Any]:
    if os.path.isdir(path):
        raise SpecError(f"{path}: is a directory; expected a config.json")
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(raw) > _LARGEST:
        raise SpecError(f"{path}: is larger than 1 MiB; expected a small config.json")
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: is no JSON: {str(error)[:200] or 'nested too deeply'}") from None
    if not isinstance(config, dict):
        raise SpecError(f"{path}: expected one JSON object with model_type, hidden_size, ...")
    return config


def _name(config: dict[str, Any], path: str | Path) -> str:
    """The name the file gives, else that of its folder or itself."""
    given = config.get("_name_or_path")
    text = given if isinstance(given, str) and given.strip("./ ") else Path(path).resolve().parent.name
    text = "".join(c if c.isalnum() and c.isascii() else "_" for c in text.rstrip("/").split("/")[-1].lower())
    return text.strip("_")[:80] or "model"


def _whole(config: dict[str, Any], key: str, path: str | Path, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        got = "nothing" if value is None else str(value)[:40]
        raise SpecError(f"{path}: {key}: expected a whole number above zero, got {got}")
    return value


def _flag(config: dict[str, Any], key: str, path: str | Path, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise SpecError(f"{path}: {key}: expected true or false, got {str(value)[:40]}")
    return value


def _llama(config: dict[str, Any], path: str | Path) -> dict[str, Any]:
    heads = _whole(config, "num_attention_heads", path)
    hidden = _whole(config, "hidden_size", path)
    table: dict[str, Any] = {
        "layers": _whole(config, "num_hidden_layers", path),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _whole(config, "num_key_value_heads", path, heads),
        "ffn": _whole(config, "intermediate_size", path),
        "gated_mlp": True,
        "norm": "rms_norm",
        "positions": "rotary",
        "tied_embeddings": _flag(config, "tie_word_embeddings", path, False),
        "vocabulary": _whole(config, "vocab_size", path),
        "sequence_length": _context(config, path),
        "linear_bias": _flag(config, "mlp_bias", path, False),
        "qkv_bias": _flag(config, "attention_bias", path, config["model_type"] == "qwen2"),
    }
    if config.get("head_dim") is not None:
        table["head_dim"] = _whole(config, "head_dim", path)
    return table


def _context(config: dict[str, Any], path: str | Path) -> int:
    """The longest sequence whose attention is full: a sliding window in use ends it."""
    context = _whole(config, "max_position_embeddings", path)
    used = config.get("use_sliding_window", config["model_type"] != "qwen2")
    if config.get("sliding_window") is None or not used:
        return context
    return min(context, _whole(config, "sliding_window", path))


def _gpt2(config: dict[str, Any], path: str | Path) -> dict[str, Any]:
    hidden = _whole(config, "n_embd", path)
    return {
        "layers": _whole(config, "n_layer", path),
        "hidden": hidden,
        "heads": _whole(config, "n_head", path),
        "ffn": _whole(config, "n_inner", path, 4 * hidden),
        "gated_mlp": False,
        "norm": "layer_norm",
        "positions": "learned",
        "tied_embeddings": _flag(config, "tie_word_embeddings", path, True),
        "vocabulary": _whole(config, "vocab_size", path),
        "sequence_length": _whole(config, "n_positions", path),
        "linear_bias": True,
        "qkv_bias": True,
    }
