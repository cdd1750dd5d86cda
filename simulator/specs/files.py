"""Files that users hand us, and files that we write: read with a limit, written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from simulator.errors import SimulatorError, SpecError

__all__ = ["CsvRows", "ending_error", "read_bytes", "reason_of", "replacing", "shown_path", "write_text"]

_KINDS = ((stat.S_ISFIFO, "pipe"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"))
"""What is no regular file, and may give bytes without end or never one."""


def read_bytes(
    path: Path | str, most: int, what: str = "file", error: type[SimulatorError] = SpecError, place: str = ""
) -> bytes:
    """Return the content of a regular file.

    Args:
        most: bytes that it may have.
        what: the file should be, for messages.
        error: what to raise.
        place: how messages call the file, where it is not as the user wrote it.

    Raises:
        SimulatorError: no file, a directory, a pipe or a device, larger than `most`, or not to be read.
    """
    place = place or shown_path(path)
    if os.path.isdir(path):
        raise error(f"{place}: is a directory; expected a {what}")
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                kind = next((word for test, word in _KINDS if test(mode)), "special file")
                raise error(f"{place}: is a {kind}; expected a {what}, which is read from a regular file only")
            raw = file.read(most + 1)
    except (OSError, ValueError) as problem:
        raise error(f"{place}: cannot be read ({reason_of(problem)})") from None
    if len(raw) > most:
        size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
        raise error(f"{place}: is larger than {size}; expected a small {what}")
    return raw


class CsvRows:
    """The rows of a CSV by the names of its header, as `csv.DictReader`; what is no CSV raises an error that names the line.

    Columns whose header has no comma may be separated by tabs or semicolons, as spreadsheets write them.
    """

    def __init__(self, lines: Iterable[str], place: str, error: type[SimulatorError] = SpecError) -> None:
        rest = iter(lines)
        header = list(islice(rest, 1))
        mark = next((mark for mark in ",\t;" if any(mark in line for line in header)), ",")
        self._rows, self._place, self._error = csv.DictReader(chain(header, rest), delimiter=mark), place, error

    def __iter__(self) -> Iterator[dict[str | Any, str | Any]]:
        with self._named():
            yield from self._rows

    @property
    def fieldnames(self) -> Sequence[str] | None:
        """Names of the columns; None for an empty file."""
        with self._named():
            return self._rows.fieldnames

    @property
    def line_num(self) -> int:
        """Lines read so far."""
        return self._rows.line_num

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except csv.Error as problem:
            raise self._error(
                f"{self._place}, line {self.line_num + 1}: is no CSV that can be read ({problem})"
            ) from None


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Give a path to write to, which takes the place of `path` when the block ends well; else nothing is left behind.

    A device or a pipe is written to as it is.  An error says which file could not be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, replacing(Path(folder) / "answer.txt") as beside:
    ...     _ = beside.write_text("42")
    ...     sorted(p.name == "answer.txt" for p in Path(folder).iterdir())
    [False]
    """
    final = Path(os.path.realpath(path))
    special = final.exists() and not final.is_file()
    beside = final if special else final.with_name(f".{final.stem[:100]}.{os.getpid()}{final.suffix[:50]}")
    try:
        yield beside
        if not special:
            if final.exists():
                os.chmod(beside, stat.S_IMODE(final.stat().st_mode))
            os.replace(beside, final)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror or str(problem), str(path)) from None
    finally:
        if not special:
            with contextlib.suppress(OSError):
                os.unlink(beside)


def ending_error(what: str, path: Path | str, endings: Iterable[str]) -> SpecError:
    """Return the refusal of a file to write whose ending is none of those that name a format."""
    return SpecError(f"a {what}'s file ending names its format, but {str(path)!r} has none of: {', '.join(endings)}")


def write_text(path: Path | str, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        OSError: it cannot be written; names the file.
    """
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def shown_path(path: Path | str) -> str:
    """Return a path as the user would write it: relative when it lies under the working directory."""
    try:
        return str(Path(os.path.abspath(path)).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def reason_of(error: Exception) -> str:
    """Return why a file could not be read, without its path."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
