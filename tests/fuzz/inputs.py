"""What an input is, and how files are mutated: our own by their classes, tables cell by cell, all else line by line."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from simulator.specs import data_roots, names
from tests.fuzz.values import as_toml, close_to, field_value, fields_of, garbage, text

__all__ = [
    "DATA",
    "Input",
    "Request",
    "Target",
    "lines_of",
    "mutated",
    "mutated_table",
    "mutated_text",
    "shipped",
    "shipped_names",
    "toml_text",
]

DATA = Path(__file__).resolve().parents[1] / "data"
_TOPS = {"models": "workloads", "jobs": "workloads"}
_FREE = {"name", "aliases", "sources", "notes", "extends"}
"""Fields that say nothing about what is computed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent to `dtsim serve`."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: str


@dataclass(frozen=True, slots=True)
class Input:
    """Files to write (path to text) and the command; of `serve` what it is asked."""

    files: dict[str, str]
    arguments: tuple[str, ...]
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of input, and what makes one."""

    name: str
    draw: Callable[[Random], Input]


def toml_text(table: dict[str, Any]) -> str:
    """A file of ours, one key a line."""
    return "".join(f"{as_toml(key)} = {as_toml(value)}\n" for key, value in table.items())


@functools.cache
def shipped(kind: str, name: str) -> dict[str, Any]:
    """A shipped data file as it is written."""
    folder = data_roots()[-1] / _TOPS.get(kind, "hardware_specs") / kind
    return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


@functools.cache
def shipped_names(kind: str) -> tuple[str, ...]:
    """All of a kind."""
    return tuple(names(kind))


def mutated(draw: Random, base: dict[str, Any], cls: type[BaseModel]) -> dict[str, Any]:
    """The file with one or two keys changed, added or dropped, seven in eight as the class wants them."""
    table, fields = dict(base), fields_of(cls)
    for _ in range(draw.randint(1, 2)):
        present = [key for key in table if key in fields and key not in _FREE]
        key = draw.choice(present if present and draw.random() < 0.6 else [key for key in fields if key not in _FREE])
        table = _changed(draw, table, key, fields[key])
    return table


def _changed(draw: Random, table: dict[str, Any], key: str, field: Any) -> dict[str, Any]:
    how, old = draw.random(), table.get(key)
    if how < 0.06:
        return {name: value for name, value in table.items() if name != key}
    if how < 0.12:
        return {**table, key: garbage(draw)}
    if how < 0.75 and isinstance(old, dict) and old:
        inner = draw.choice(sorted(old))
        return {**table, key: {**old, inner: _near(draw, old[inner], lambda: garbage(draw))}}
    if how < 0.75 and isinstance(old, list) and old:
        at = draw.randrange(len(old))
        near = _near(draw, old[at], lambda: field_value(draw, key, field)[0])
        return {**table, key: [*old[:at], near, *old[at + 1 :]]}
    if how < 0.75:
        return {**table, key: _near(draw, old, lambda: field_value(draw, key, field))}
    return {**table, key: field_value(draw, key, field)}


def _near(draw: Random, old: Any, otherwise: Callable[[], Any]) -> Any:
    near = close_to(draw, old)
    return otherwise() if near is None else near


_CELLS = ("", "0", "-1", "1", "2", "3", "7", "1e9", "1e30", "1e-30", "1e308", "nan", "yes", "none", "0F0", "é")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


def lines_of(name: str, head: int, wanted: str = "") -> list[str]:
    """The header of a table of tests/data and its first rows with a word."""
    lines = [line for line in (DATA / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [lines[0], *[line for line in lines[1:] if wanted in line and '"' not in line][:head]]


def mutated_table(draw: Random, base: list[str]) -> str:
    """Lines of a table with one or two cells changed: to a number nearby, an extreme, a word, nothing."""
    rows = [line.split(",") for line in base]
    for _ in range(draw.randint(1, 2)):
        row = draw.choice(rows[1:])
        at = draw.randrange(len(row))
        near = close_to(draw, row[at])
        row[at] = draw.choice(_CELLS) if near is None or draw.random() < 0.3 else near
    return "\n".join(map(",".join, rows)) + "\n"


def mutated_text(draw: Random, base: str) -> str:
    """A text with one or two numbers, words or lines changed."""
    lines = base.split("\n")
    for _ in range(draw.randint(1, 2)):
        at, how = draw.randrange(len(lines)), draw.randrange(5)
        if how < 2:
            lines[at] = _NUMBER.sub(lambda found: str(close_to(draw, found[0])), lines[at])
        elif how == 2:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif how == 3:
            lines[at] = " ".join(draw.sample(words, len(words)) if (words := lines[at].split(" ")) else [])
        else:
            lines[at] = draw.choice(("", lines[at] * 2, lines[at][: len(lines[at]) // 2], text(draw, 20)))
    return "\n".join(lines)
