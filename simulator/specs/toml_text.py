"""TOML files as text: read with care, and the line of each key, for messages."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from simulator.errors import SpecError

__all__ = ["KeyPath", "key_lines", "parse_toml", "read_text", "read_toml", "reason_of", "shown_path"]

KeyPath = tuple[str | int, ...]
"""Keys and places in lists from the top of a file to a value."""

_MAX_FILE = 2**20
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


def read_text(path: Path | str, what: str = "TOML file") -> str:
    """Return the text of a small file; `what` it should be is named in messages.

    Raises:
        SpecError: no file, a directory, too large, or not UTF-8.
    """
    place = shown_path(path)
    if os.path.isdir(path):
        raise SpecError(f"{place}: is a directory; expected a {what}")
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:
        raise SpecError(f"{place}: cannot be read ({reason_of(error)})") from None
    if len(raw) > _MAX_FILE:
        raise SpecError(f"{place}: is larger than 1 MiB; expected a small {what}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = what.removesuffix(" file")
        raise SpecError(f"{place}: is no text file (byte {error.start} is not UTF-8); expected {kind}") from None


def parse_toml(text: str, path: Path | str) -> dict[str, Any]:
    """Return a TOML text as a dict; `path` is named in messages.

    Raises:
        SpecError: it is no TOML; the message has the line.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
        where, why = (f", line {match.group(2)}", match.group(1)) if match else ("", str(error))
        raise SpecError(f"{shown_path(path)}{where}: is no TOML: {why}") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        raise SpecError(f"{shown_path(path)}: is no TOML that can be read: {why}") from None


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


def shown_path(path: Path | str) -> str:
    """Return a path as the user would write it: relative when it lies under the working directory."""
    try:
        return str(Path(os.path.abspath(path)).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def reason_of(error: Exception) -> str:
    """Return why a file could not be read, without its path."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
