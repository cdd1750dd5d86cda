"""What follows from the rows of a program alone: found once for all programs that share their columns.

Lowering gives programs of one structure the very same arrays.  A `Rows` belongs to these arrays: they cannot be written to and it
keeps them, so whatever it found about them stays true.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.remembered import Remembered

__all__ = [
    "COLUMNS",
    "EFFECT_COLUMNS",
    "KEPT_BYTES",
    "ROW_COLUMNS",
    "SPECIAL_COLUMNS",
    "Rows",
    "fixed",
    "rows_of",
]

ROW_COLUMNS = ("item", "kind", "action", "rank", "lane", "chunk", "microbatch", "step", "part")
"""Columns with an entry per row."""
SPECIAL_COLUMNS = ("count", "slice", "slices", "second_chunk", "second_microbatch")
EFFECT_COLUMNS = ("start_effect", "end_effect", "mark_effect")
"""Columns with an entry per row, or none at all: of actions on several microbatches, parts of one or two chunks, and of memory."""
COLUMNS = (
    *ROW_COLUMNS, "stream_offsets", "streams", "after_offsets", "after", "stream_rank", *SPECIAL_COLUMNS,
)  # fmt: skip
"""All columns of a program with an entry per row or stream, but those of memory effects."""
KEPT_BYTES = 256 * 2**20
"""Bytes of columns about which findings are kept."""
_COMPUTE = 0

Found = TypeVar("Found")


class Rows:
    """Findings about the columns of a program.

    Args:
        columns: by name, as in `COLUMNS`.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self.columns = dict(columns)
        self._found: dict[Hashable, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(array.nbytes for array in self.columns.values())

    def once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """Return what was found under a key, or find it; `find` may read columns and what is in the key, nothing else."""
        if key not in self._found:
            if len(self._found) >= _MOST_FINDINGS:
                self._found.clear()
            self._found[key] = find()
        found: Found = self._found[key]
        return found

    @functools.cached_property
    def computes(self) -> NDArray[np.int64]:
        """The compute rows."""
        return np.flatnonzero(self.columns["kind"] == _COMPUTE)

    @functools.cached_property
    def links(self) -> NDArray[np.int64]:
        """All other rows."""
        return np.flatnonzero(self.columns["kind"] != _COMPUTE)


_MOST_FINDINGS = 64
_KEPT: Remembered[Rows] = Remembered(KEPT_BYTES, lambda rows: rows.nbytes)


def rows_of(program: Any) -> Rows:
    """Return what belongs to the columns of a program; shared by all programs with the same arrays, if nobody can write to these."""
    columns = {name: getattr(program, name) for name in COLUMNS}
    if not fixed(*columns.values()):
        return Rows(columns)
    key = tuple(id(array) if len(array) else 0 for array in columns.values())
    return _KEPT.get(key, lambda: Rows(columns))


def fixed(*arrays: NDArray[Any]) -> bool:
    """Return whether nobody can write to these arrays, nor to those that they are views of."""
    return not any(_may_change(array) for array in arrays if len(array))


def _may_change(array: NDArray[Any]) -> bool:
    base = array.base
    return array.flags.writeable or (isinstance(base, np.ndarray) and _may_change(base))
