"""A data file that extends another of its kind: what it does not say itself is as there.

    name = "my_code"
    extends = "megatron_core"       # one name, of a file beside it, in the working directory or of the package
    recompute = "full"              # a key replaces that of the extended file

A source goes with its key: an inherited value has the source that it has there, the `"*"` of each file covers what that file says
itself, and a file may cite a source of its own for a value it inherits.  `name`, `aliases` and `notes` are not inherited.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import SpecError, UnknownNameError
from simulator.specs.files import reason_of, shown_path
from simulator.specs.folders import find_extended
from simulator.specs.messages import kind_of
from simulator.specs.toml_text import key_lines, parse_toml, read_text

__all__ = ["FileState", "Resolved", "file_state", "lineage", "resolve"]

_DEEPEST = 16
"""Most files in a row, each of which extends the next."""
_ABOUT_THE_FILE = ("name", "aliases", "notes", "sources")
"""Keys that are not inherited."""


class FileState(NamedTuple):
    """A file as of now: its whole path, when it was changed [ns] and how large it is [B]."""

    path: str
    changed: int
    size: int


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a file and those that it extends say together.

    Args:
        files: paths; the file itself first, then what it extends, and so on.
        data: its own `name`, `aliases`, `notes` and `extends`, all other keys of all files, and `sources` by key.
        stated_in: key of `data` -> path of the file that says it.
    """

    files: tuple[str, ...]
    data: dict[str, Any]
    stated_in: dict[str, str]


def file_state(path: Path | str) -> FileState:
    """Return a file as of now.

    Raises:
        SpecError: it cannot be read.
    """
    try:
        info = os.stat(path)
    except (OSError, ValueError) as error:
        raise SpecError(f"{shown_path(path)}: cannot be read ({reason_of(error)})") from None
    return FileState(os.path.abspath(path), info.st_mtime_ns, info.st_size)


def lineage(path: Path | str, kind: str) -> tuple[FileState, ...]:
    """Return a file of a kind, the file that it extends, and so on to one that extends none.

    Raises:
        SpecError: one of them cannot be read or extends what does not exist, the files go round in a circle, or they are too many.
    """
    files = [file_state(path)]
    while name := _extended(files[-1]):
        last = files[-1].path
        try:
            parent = find_extended(kind, name, last)
        except UnknownNameError as error:
            raise SpecError(f'{_place(last)}: extends = "{name[:100]}": {error}') from None
        if any(file.path == parent for file in files):
            raise SpecError(
                f"{_place(last)}: files must not extend each other in a circle, but {_row(files, name)}. "
                "Way out: take extends out of one."
            )
        if len(files) == _DEEPEST:
            raise SpecError(
                f"{_place(last)}: at most {_DEEPEST} files may extend one another in a row, but {_row(files, name)} are more. "
                "Way out: extend a file nearer to the end of this row."
            )
        files.append(file_state(parent))
    return tuple(files)


def _row(files: Sequence[FileState], name: str) -> str:
    return " -> ".join([*(Path(file.path).stem for file in files), name])


def resolve(files: Sequence[FileState]) -> Resolved:
    """Return what the files of a `lineage` say together.

    Raises:
        SpecError: one cannot be read, or is no TOML.
    """
    own = _read(files[0])
    if len(files) == 1:
        return Resolved((files[0].path,), dict(own), dict.fromkeys(own, files[0].path))
    values: dict[str, Any] = {}
    sources: dict[str, object] = {}
    stated_in = dict.fromkeys(own, files[0].path)
    for file in reversed(files):
        data = _read(file)
        said = {key: value for key, value in data.items() if key not in _ABOUT_THE_FILE}
        values |= said
        stated_in |= dict.fromkeys(said, file.path)
        cited = _sources(data)
        new = {key: text for key, text in cited.items() if key in values}
        if "*" in cited:
            new |= {key: cited["*"] for key in said if key not in cited}
        sources = {key: text for key, text in sources.items() if key not in said and key not in new} | new
    about = {key: value for key, value in own.items() if key in (*_ABOUT_THE_FILE, "extends")}
    if isinstance(own.get("sources", {}), dict):  # else the rules say what is wrong with it
        about["sources"] = {
            key: text for key, text in _sources(own).items() if key not in values and key != "*"
        } | sources
    return Resolved(tuple(file.path for file in files), about | values, stated_in)


def _sources(data: dict[str, object]) -> dict[str, object]:
    cited = data.get("sources", {})
    return cited if isinstance(cited, dict) else {}


def _extended(file: FileState) -> str | None:
    """The name that a file extends."""
    name = _read(file).get("extends")
    if name is not None and not (isinstance(name, str) and name):
        got = "nothing" if name == "" else kind_of(name)
        raise SpecError(f"{_place(file.path)}: extends: expected the name of one file in quotes, got {got}")
    return name


def _place(path: str) -> str:
    """Where a file says what it extends."""
    line = key_lines(read_text(path)).get(("extends",))
    return f"{shown_path(path)}, line {line}" if line else shown_path(path)


@functools.lru_cache(maxsize=1024)
def _read(file: FileState) -> dict[str, Any]:
    return parse_toml(read_text(file.path), file.path)
