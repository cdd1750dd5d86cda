"""Read a model's shape from a Hugging Face `config.json`.

The file is data: it is parsed, checked key by key, and nothing in it is run.  What each family calls its sizes is in
`hugging_face_shapes`; a file of an image-and-text model is read for its `text_config`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.specs import read_text, validate_spec
from simulator.studies.hugging_face_shapes import Config, shape_of, types
from simulator.workload.model import Model

__all__ = ["KNOWN_TYPES", "model_from_config"]

KNOWN_TYPES = types()
"""Values of `model_type` that can be read."""


def model_from_config(path: str | Path) -> dict[str, Any]:
    """Return the table [model] of a job for a local config.json, checked by the rules of `Model`.

    Raises:
        SpecError: no such file, no JSON object, a model_type that cannot be read, or a shape that cannot be.
    """
    config = _read(path)
    inner = config.get("text_config")
    if config.get("model_type") not in KNOWN_TYPES and isinstance(inner, dict):
        config = {"_name_or_path": config.get("_name_or_path"), **inner}
    kind = config.get("model_type")
    if kind not in KNOWN_TYPES:
        raise SpecError(
            f"{path}: model_type = {str(kind)[:60]!r} cannot be read; known: {', '.join(KNOWN_TYPES)}. Way out: dtsim "
            "init with a named model, then change its numbers in a table [model]"
        )
    table = {"name": _name(config, path), "family": str(kind)} | shape_of(Config(config, str(path)))
    validate_spec(table, Model, str(path))
    return table


def _read(path: str | Path) -> dict[str, Any]:
    text = read_text(path, "config.json")
    try:
        config = json.loads(text)
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
