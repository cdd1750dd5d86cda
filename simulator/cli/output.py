"""What all verbs share on their way out: JSON, text, notes on standard error."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from simulator.errors import SpecError
from simulator.report.table import Section, plain_bars, render_sections
from simulator.specs import ending_error

if TYPE_CHECKING:
    from simulator.report.frames import Tabular

__all__ = [
    "HTML",
    "INTERRUPTED",
    "TRACE",
    "check_ending",
    "check_job_file",
    "check_some",
    "claim",
    "claim_table",
    "compile_cache_of",
    "json_text",
    "line_width",
    "note",
    "print_answer",
    "print_json",
    "print_sections",
    "save_table",
    "tell_compiling",
    "wrote",
]

INTERRUPTED = 130
"""Exit code of what Ctrl-C stopped."""

HTML = (".html", ".htm")
TRACE = (".json", ".json.gz")
"""Endings of pages and of Chrome traces."""


def print_json(answer: dict[str, object], kind: str) -> None:
    """Print one JSON object on standard output; numbers that JSON lacks (NaN, infinity) become null."""
    print(json_text(answer, kind))


def json_text(answer: dict[str, object], kind: str) -> str:
    """Return an answer as JSON: version of the schema, kind, and provenance, where it does not say them itself (`cli.answers`)."""
    from simulator import __version__
    from simulator.report.schema import SCHEMA_VERSION, json_value

    head = {"schema_version": SCHEMA_VERSION, "kind": kind, "provenance": {"version": __version__}}
    return json.dumps(json_value(head | answer), indent=2, allow_nan=False, ensure_ascii=False)


def print_sections(sections: Iterable[Section]) -> None:
    """Print sections as text: bold headings on a terminal that has them, lines as wide as it is, blocks where it shows them."""
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    text = render_sections(sections, bold, line_width())
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = plain_bars(text)
    print(text)


class Told(Protocol):
    """An answer that has a JSON form and one to read."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""

    def sections(self) -> Sequence[Section]:
        """Return it as text."""


def print_answer(found: Told, kind: str, as_json: bool) -> None:
    """Print an answer as one JSON object, or as text."""
    if as_json:
        print_json(found.to_dict(), kind)
    else:
        print_sections(found.sections())


def check_some(could: int, reasons: Iterable[str], what: str) -> None:
    """Refuse what nothing of which can be.

    Args:
        could: how many can.
        reasons: of those that cannot, in their order; looked at where none can.
        what: what there are several of, such as "points".

    Raises:
        SpecError: none can; the message has the first reason.
    """
    if not could and (first := next(iter(reasons), None)) is not None:
        raise SpecError(f"none of the {what} can be; the first: {first}")


def line_width() -> int | None:
    """Characters of a line: what COLUMNS says, else what the terminal has; None where standard output is none."""
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and 0 < len(told) < 6 and int(told):
        return max(int(told), 20)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def claim(force: bool, *paths: str | Path | None, makes_folders: bool = False) -> None:
    """Refuse to write over a file that exists, or where no file can be, before anything is computed; a device or a pipe is written to.

    Args:
        makes_folders: whether folders that are not there will be made.

    Raises:
        SpecError: one of the files exists or cannot be made, or two of them are one.
    """
    wanted = [Path(path) for path in paths if path is not None and str(path) != "-"]
    for path in wanted:
        if path.is_dir():
            raise SpecError(f"{path}: is a directory; name a file to write")
        if path.is_file() and not force:
            raise SpecError(f"{path}: exists already. Way out: another file, or --force to overwrite it")
        if not makes_folders and (path.is_file() or not path.exists()):
            _check_folder(path)
    real = [os.path.realpath(path) for path in wanted]
    twice = [
        path
        for path, place in zip(wanted, real, strict=True)
        if real.count(place) > 1 and path.exists() <= path.is_file()
    ]
    if twice:
        raise SpecError(f"{twice[0]}: two outputs go to this file. Way out: a file for each")


def _check_folder(path: Path) -> None:
    """Refuse a file in whose folder none can be made."""
    folder = path.parent
    if not folder.exists():
        raise SpecError(f"{path}: its folder is not there. Way out: mkdir -p {shlex.quote(str(folder))}")
    if not folder.is_dir():
        raise SpecError(f"{path}: {folder} is no folder. Way out: another file")
    if not os.access(folder, os.W_OK):
        raise SpecError(f"{path}: its folder may not be written to. Way out: another folder")


def check_job_file(path: str | None, tables: Sequence[str] = ()) -> None:
    """Refuse a file, where one is named, to which no job can be written beside the answer, before anything is computed.

    Args:
        tables: endings of tables that may be written in its place.

    Raises:
        SpecError: it is standard output, or ends otherwise.
    """
    if path == "-":
        raise SpecError("-o - would write to standard output, where the answer goes. Way out: -o job.toml")
    if path is not None and Path(path).suffix.lower() not in (".toml", "", *tables):
        also = f", or the plans as a table ({', '.join(tables)})" if tables else ""
        raise SpecError(f"{path}: -o writes a job (.toml){also}")


def check_ending(what: str, path: str | None, *endings: str) -> None:
    """Refuse a file, where one is named, that does not end as what is written to it, before anything is computed.

    Raises:
        SpecError: it does not.
    """
    if path is not None and not path.lower().endswith(endings):
        raise ending_error(what, path, endings)


def claim_table(force: bool, table: str | None, *paths: str | Path | None) -> None:
    """Claim files of which the first is a table.

    Raises:
        SpecError: as `claim`, or the ending of the table's file is none of a table.
    """
    if table is not None:
        from simulator.report.frames import check_table

        check_table(table)
    claim(force, table, *paths)


def save_table(answer: Tabular, path: str | None, table: str | None = None) -> None:
    """Write a table of an answer, where a file for it is named."""
    if path is not None:
        from simulator.report.frames import write_table

        if write_table(answer, path, table):
            wrote(path)
        else:
            note(f"{path} is not written: its table has no rows")


def note(text: str) -> None:
    """Print a line on standard error; where that is closed or full, nobody can be told."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr)


@contextlib.contextmanager
def telling(steady: bool = False) -> Iterator[Callable[[str], None]]:
    """Give what tells how far an answer is on standard error: in one line written over and over on a terminal, else line by line.

    Args:
        steady: whether a line comes every second: in a file each then waits for a tenth of the time that has passed.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        began = told = time.monotonic()

        def tell_more_rarely(line: str) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= (now - began) / 10:
                told = now
                note(line)

        yield tell_more_rarely if steady else note
        return

    def tell(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print("\r\033[K" + line[: shutil.get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        tell("")


def wrote(path: str | Path) -> None:
    """Say on standard error which file was written."""
    note(f"wrote {path}")


@functools.cache
def tell_compiling() -> None:
    """From now on say on standard error, once, when a part of the engine is not found compiled and is compiled."""
    from simulator.compiled import when_compiling

    when_compiling(lambda begins: _say_compiling())


@functools.cache
def _say_compiling() -> None:
    note("compiling the engine once (a few seconds) ...")


def compile_cache_of(error: Exception) -> str | None:
    """Return the folder of compiled code whose reading or writing raised an error; None when it was something else."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "numba.core.caching":
            keeper = frame.f_locals.get("self")
            for name in ("_cache_path", "_index_path"):
                if isinstance(place := getattr(keeper, name, None), str):
                    return place if name == "_cache_path" else os.path.dirname(place)
            return str(Path(__file__).resolve().parents[1])
    return None
