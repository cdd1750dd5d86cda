"""A spec as the text of a file that reads back as it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from simulator.specs.toml_text import toml_key, toml_value
from simulator.units import WRITTEN

__all__ = ["spec_toml"]

_LAST = ("residuals", "sources")


def spec_toml(spec: BaseModel, header: str) -> str:
    """Return what a spec says beyond its defaults, quantities with their units, as TOML: its own values, its tables, its sources.
    A table inside a table stands on one line where it has plain values alone.

    Args:
        header: comments for the top of the file: how it was made.
    """
    data = spec.model_dump(exclude_defaults=True, exclude_none=True, context=WRITTEN)
    lines = [f"# {line}" for line in header.splitlines()]
    lines += _table({key: data[key] for key in sorted(data, key=_LAST.__contains__)}, ())
    return "\n".join(lines) + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables = {key: value for key, value in data.items() if _stands_alone(value, path)}
    values = {key: value for key, value in data.items() if key not in tables}
    if path and values:
        yield from ("", f"[{'.'.join(map(toml_key, path))}]")
    for key, value in values.items():
        yield f"{toml_key(key)} = {toml_value(value)}"
    for key, value in tables.items():
        yield from _table(value, (*path, key))


def _stands_alone(value: object, path: tuple[str, ...]) -> bool:
    inside = value.values() if isinstance(value, Mapping) else ()
    return bool(inside) and (not path or any(isinstance(inner, Mapping) for inner in inside))
