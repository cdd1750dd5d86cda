"""TOML files as text: read with care, and the line of each key, for messages."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.specs.files import read_bytes, shown_path
from simulator.units import sane

__all__ = [
    "KeyPath",
    "checked",
    "key_lines",
    "parse_toml",
    "read_text",
    "read_toml",
    "table_lines",
    "toml_key",
    "toml_text",
    "toml_value",
]

KeyPath = tuple[str | int, ...]
"""Keys and places in lists from the top of a file to a value."""

_MAX_FILE = 2**20
_DEEPEST = 40
_KEY = r"(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)"
_KEY_LINE = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=\s*(.*)")
_TABLE_LINE = re.compile(rf"\s*(\[\[?)\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*\]")
_STRINGS = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|#.*")


def read_toml(path: Path | str) -> dict[str, Any]:
    """Return the file's content as a dict, not yet checked against any rule.

    Raises:
        SpecError: no file, a directory, no text, too large, or no TOML (with the line).
    """
    return parse_toml(read_text(path), path)


def read_text(path: Path | str) -> str:
    """Return the text of a small file that should be TOML.

    Raises:
        SpecError: no regular file, too large, or not UTF-8.
    """
    place = shown_path(path)
    raw = read_bytes(path, _MAX_FILE, "TOML file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{place}: is no text file (byte {error.start} is not UTF-8); expected TOML") from None


def parse_toml(text: str, path: Path | str) -> dict[str, object]:
    """Return a TOML text as a dict; `path` is named in messages.

    Raises:
        SpecError: it is no TOML; the message has the line.
    """
    try:
        return dict(checked(tomllib.loads(text), shown_path(path)))
    except tomllib.TOMLDecodeError as error:
        match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
        where, why = (f", line {match.group(2)}", match.group(1)) if match else ("", str(error))
        hint = ". It looks like JSON, which dtsim import and --model read" if text.lstrip().startswith("{") else ""
        raise SpecError(f"{shown_path(path)}{where}: is no TOML: {why}{hint}") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        raise SpecError(f"{shown_path(path)}: is no TOML that can be read: {why}") from None


def checked(data: Mapping[str, Any], place: str) -> Mapping[str, object]:
    """Return what was read.

    Raises:
        SpecError: it is nested too deeply, or has a number of a magnitude that nothing has.
    """
    waiting: list[tuple[object, KeyPath]] = [(data, ())]
    while waiting:
        value, at = waiting.pop()
        if isinstance(value, Mapping | list):
            if len(at) > _DEEPEST:
                raise SpecError(f"{place}: is nested too deeply: at most {_DEEPEST} tables and lists in one another")
            waiting += [
                (inner, (*at, key))
                for key, inner in (value.items() if isinstance(value, Mapping) else enumerate(value))
            ]
        elif isinstance(value, float) and math.isfinite(value) and not sane(value):
            raise SpecError(f"{place}: {'.'.join(map(str, at))[:100]} = {value}: no number that anything has")
    return data


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line number of each key and table of a TOML text; best effort, for messages only.

    >>> key_lines('a = 1\\n[[run]]\\nb.c = "x"\\n')
    {('a',): 1, ('run', 0): 2, ('run', 0, 'b', 'c'): 3}
    """
    lines: dict[KeyPath, int] = {}
    arrays: dict[KeyPath, int] = {}
    table: KeyPath = ()
    depth, quote = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if quote:
            quote = "" if quote in line else quote
            continue
        key = _KEY_LINE.match(line) if depth == 0 else None
        header = _TABLE_LINE.match(line) if depth == 0 and not key else None
        if header:
            table = _table_path(_parts(header.group(2)), arrays, header.group(1) == "[[")
            lines.setdefault(table, number)
            continue
        if key:
            lines.setdefault(table + _parts(key.group(1)), number)
        rest = key.group(2) if key else line
        quote = next((q for q in ('"""', "'''") if rest.startswith(q) and q not in rest[3:]), "")
        if not quote:
            bare = _STRINGS.sub("", rest)
            depth = max(0, depth + sum(map(bare.count, "[{")) - sum(map(bare.count, "]}")))
    return lines


def _parts(dotted: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_KEY, dotted))


def _table_path(parts: KeyPath, arrays: dict[KeyPath, int], opens_item: bool) -> KeyPath:
    path: KeyPath = ()
    for i, part in enumerate(parts):
        path = (*path, part)
        if opens_item and i == len(parts) - 1:
            arrays[path] = arrays.get(path, -1) + 1
        if path in arrays:
            path = (*path, arrays[path])
    return path


def toml_value(value: Any) -> str:
    """Return a value as TOML has it on one line.

    >>> toml_value({"a": [1, "x"], "b c": True})
    '{ a = [1, "x"], "b c" = true }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(str(key))} = {toml_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)


def toml_key(key: str) -> str:
    """Return a key as TOML has it: bare where it can be, else in quotes."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def table_lines(name: str, values: Mapping[str, object]) -> list[str]:
    """Return a table as lines behind an empty one: its heading, then a line per value.

    >>> table_lines("plan", {"zero_stage": 1})
    ['', '[plan]', 'zero_stage = 1']
    """
    return ["", f"[{name}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items())]


def toml_text(data: Mapping[str, object]) -> str:
    """Return a file's text: its own values, then its tables, whose values stand on one line each.

    >>> print(toml_text({"name": "a", "plan": {"zero_stage": 1, "layer_split": [3, 5]}}), end="")
    name = "a"
    <BLANKLINE>
    [plan]
    zero_stage = 1
    layer_split = [3, 5]
    """
    lines = [f"{key} = {toml_value(value)}" for key, value in data.items() if not isinstance(value, Mapping)]
    for name, values in data.items():
        if isinstance(values, Mapping):
            lines += table_lines(name, values)
    return "\n".join(lines) + "\n"
