"""The loop that joins waits into a ragged column."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.compiled import compiled, read_only

__all__ = ["join_waits"]

Array = Any


def _types() -> Any:
    """One version, whether an array happens to be writeable or not."""
    from numba import int32, int64, types

    (longs,) = read_only("int64")
    return types.Tuple((int64[::1], int32[::1]))(longs, longs, int64)  # type: ignore[no-untyped-call]


@compiled(_types)
def join_waits(rows: Array, on: Array, size: int) -> tuple[Array, Array]:
    """Return (offsets, after): for each of `size` rows what it waits for, in the order in which it was added.

    Args:
        rows, on: pairs: a row, and a row that it waits for.
    """
    offsets = np.zeros(size + 1, np.int64)
    for row in rows:
        offsets[row + 1] += 1
    for row in range(size):
        offsets[row + 1] += offsets[row]
    cursor = offsets[:-1].copy()
    after = np.empty(len(rows), np.int32)
    for i in range(len(rows)):
        after[cursor[rows[i]]] = on[i]
        cursor[rows[i]] += 1
    return offsets, after
