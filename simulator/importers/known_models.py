"""Models that other programs name: the table of one that is shipped here, by its name or alias."""

from __future__ import annotations

import re
from typing import Any

from simulator.errors import SimulatorError
from simulator.specs import find_spec, read_toml

__all__ = ["model_table"]

_RELEASES = re.compile(r"[-_](?:instruct|chat|it|base|hf|deduped|2507)(?=[-_]|$)")
"""What names of releases of one shape differ by: they were trained on, not changed."""
_OWN = ("sources", "notes", "aliases", "parameters_published")


def model_table(name: str) -> dict[str, Any] | None:
    """Return the fields of a shipped model, by its name, an alias or the last part of a hub's path; None when there is none.

    >>> model_table("meta-llama/Meta-Llama-3-8B")["layers"], model_table("my-own-model")
    (32, None)
    >>> model_table("Qwen/Qwen3-4B-Instruct-2507") == model_table("qwen3_4b")
    True
    """
    last = name.rstrip("/").rsplit("/", 1)[-1]
    for one in (last, _RELEASES.sub("", last.lower().removeprefix("meta-"))):
        if not one or one.endswith(".toml") or len(one) > 100:
            continue
        try:
            table = read_toml(find_spec("models", one))
        except SimulatorError:
            continue
        return {key: value for key, value in table.items() if key not in _OWN}
    return None
