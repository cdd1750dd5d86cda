"""What JSON answers have in common: the version, and how a value is written that JSON has no word for.

The version changes when a key is taken away or means something else; keys that are added do not change it.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["SCHEMA_VERSION", "json_value"]

SCHEMA_VERSION = 1


def json_value(value: object) -> Any:
    """Return a value as JSON has it: numbers that it lacks (NaN, infinity) become null, arrays lists.

    >>> json_value({"a": (1.0, float("inf"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return json_value(value.item()) if hasattr(value, "item") else str(value)
