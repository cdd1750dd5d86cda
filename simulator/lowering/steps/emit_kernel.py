"""The compiled loop that joins waits into a ragged column.

This module imports numba, so `emit.py` imports it only when it runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64, njit, types

__all__ = ["join_waits"]

Array = Any

_LONGS = types.Array(int64, 1, "C", readonly=True)


_BOTH = types.Tuple((int64[::1], int32[::1]))  # type: ignore[no-untyped-call]


@njit(_BOTH(_LONGS, _LONGS, int64), cache=True, nogil=True)
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
