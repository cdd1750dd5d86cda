"""The compiled search for a link that runs beside a compute row.

This module imports numba, so `meetings.py` imports it only when it runs.
"""

from __future__ import annotations

from typing import Any

from numba import boolean, float64, int32, int64, njit, types

__all__ = ["overlaps"]

Array = Any

_LONGS, _INTS, _FLOATS = (types.Array(dtype, 1, "C", readonly=True) for dtype in (int64, int32, float64))


@njit(boolean(_LONGS, _LONGS, _INTS, _INTS, _LONGS, _LONGS, _FLOATS, _FLOATS), cache=True, nogil=True)
def overlaps(
    chosen: Array,
    offsets: Array,
    streams: Array,
    stream_rank: Array,
    rows: Array,
    first: Array,
    start: Array,
    end: Array,
) -> bool:
    """Return whether a chosen row runs while a compute row runs on one of its ranks.

    Args:
        chosen: rows; `offsets`, `streams`: the streams of all rows; `stream_rank`: the rank of each stream.
        rows: compute rows, rank by rank; rank r's are entries first[r]:first[r + 1], which end in the order of their numbers.
        start, end: [s] of all rows.
    """
    for link in chosen:
        for entry in range(offsets[link], offsets[link + 1]):
            rank = stream_rank[streams[entry]]
            low, high = first[rank], first[rank + 1]
            while low < high:  # the first that ends after the link starts
                middle = (low + high) // 2
                if end[rows[middle]] > start[link]:
                    high = middle
                else:
                    low = middle + 1
            if low < first[rank + 1] and start[rows[low]] < end[link]:
                return True
    return False
