"""Results as they come: one line of JSON per point, appended and kept on the disk; what was cut off by a kill is dropped."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import SpecError

__all__ = ["Journal"]


class Journal:
    """A file of results, each under its key; one process writes to it at a time.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "results.jsonl")
    >>> with Journal(path) as journal:
    ...     journal.append([("a", {"step_time_s": 1.0})])
    >>> with Journal(path) as journal:
    ...     journal.keys, list(journal.rows({"a"}))
    ({'a'}, [('a', {'step_time_s': 1.0})])
    """

    def __init__(self, path: str | Path, fresh: bool = False) -> None:
        self.path = Path(path)
        self.keys: set[str] = set()
        self._fresh = fresh

    def __enter__(self) -> Journal:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise SpecError(
                f"{self.path}: another sweep is writing to it. Way out: wait for it, or another -o"
            ) from None
        if self._fresh:
            os.ftruncate(self._file, 0)
        whole = 0
        with open(self.path, "rb") as lines:
            for line in lines:
                entry = _entry(line)
                if entry is None:
                    if not line.endswith(b"\n"):
                        break  # killed while it was written
                    os.close(self._file)
                    raise SpecError(
                        f"{self.path}: line {line[:60]!r} is no result of a sweep. Way out: another -o, or --force"
                    )
                self.keys.add(entry[0])
                whole += len(line)
        os.ftruncate(self._file, whole)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def append(self, results: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Write (key, row) of some points down; when this returns, they are on the disk."""
        text = "".join(json.dumps([key, row]) + "\n" for key, row in results)
        data = text.encode()
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)
        self.keys.update(key for key, _ in results)

    def rows(self, wanted: Container[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (key, row) of the points with these keys, as they stand in the file."""
        with open(self.path, "rb") as lines:
            for line in lines:
                entry = _entry(line)
                if entry is not None and entry[0] in wanted:
                    yield entry


def _entry(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """A line as (key, row); None where it is none."""
    try:
        key, row = json.loads(line)
    except (ValueError, TypeError):
        return None
    if not (isinstance(key, str) and isinstance(row, dict) and line.endswith(b"\n")):
        return None
    return key, row
