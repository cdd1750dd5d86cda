"""Results as they come: one line of JSON per point, appended and kept on the disk; what was cut off by a kill is dropped."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import SpecError

__all__ = ["Journal"]


class Journal:
    """A file of results, each under its key; one process writes to it at a time.  Nothing of it is kept in memory.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "results.jsonl")
    >>> with Journal(path) as journal:
    ...     _ = journal.append([("a", {"step_time_s": 1.0})])
    >>> with Journal(path) as journal:
    ...     [(place, key, row)] = journal.entries()
    ...     key, list(journal.rows([place]))
    ('a', [{'step_time_s': 1.0}])
    """

    def __init__(self, path: str | Path, fresh: bool = False) -> None:
        self.path = Path(path)
        self._fresh = fresh
        self._end = 0

    def __enter__(self) -> Journal:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise SpecError(
                f"{self.path}: another sweep is writing to it. Way out: wait for it, or another -o"
            ) from None
        try:
            if self._fresh:
                os.ftruncate(self._file, 0)
            for place, line in self._lines():
                if _entry(line) is not None:
                    self._end = place + len(line)
                elif line.endswith(b"\n"):  # else killed while it was written
                    raise SpecError(
                        f"{self.path}: line {line[:60]!r} is no result of a sweep. Way out: another -o, or --force"
                    )
            os.ftruncate(self._file, self._end)
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def append(self, results: Sequence[tuple[str, Mapping[str, Any]]]) -> list[int]:
        """Write (key, row) of some points down and return the place of each; when this returns, they are on the disk."""
        lines = [(json.dumps(entry) + "\n").encode() for entry in results]
        data = b"".join(lines)
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)
        places = [self._end]
        for line in lines:
            places.append(places[-1] + len(line))
        self._end = places.pop()
        return places

    def entries(self) -> Iterator[tuple[int, str, dict[str, object]]]:
        """Yield (place, key, row) of all points, as they stand in the file."""
        for place, line in self._lines():
            entry = _entry(line)
            if entry is not None:
                yield place, *entry

    def rows(self, places: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows at these places."""
        with open(self.path, "rb") as lines:
            for place in places:
                lines.seek(place)
                yield json.loads(lines.readline())[1]

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        place = 0
        with open(self.path, "rb") as lines:
            for line in lines:
                yield place, line
                place += len(line)


def _entry(line: bytes) -> tuple[str, dict[str, object]] | None:
    """A line as (key, row); None where it is none."""
    try:
        key, row = json.loads(line)
    except (ValueError, TypeError):
        return None
    if not (isinstance(key, str) and isinstance(row, dict) and line.endswith(b"\n")):
        return None
    return key, row
