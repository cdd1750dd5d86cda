"""Lists of different lengths, laid end to end in one array, and arrays that nobody writes any more."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["frozen", "offsets", "ranges", "turns_before"]

Column = TypeVar("Column", bound=NDArray[Any])


def frozen(array: Column) -> Column:
    """Return the array itself, which refuses to be written from now on."""
    array.flags.writeable = False
    return array


def offsets(owner: NDArray[Any], lists: int) -> NDArray[np.int64]:
    """Return where each list begins, and where the last one ends, of the list that owns each entry.

    >>> offsets(np.array([0, 0, 2]), 3).tolist()
    [0, 2, 2, 3]
    """
    return frozen(np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=lists))]).astype(np.int64))


def ranges(first: Any, counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return `first`, `first + 1`, ... of each list, as many as it has entries, end to end.

    >>> ranges(np.array([5, 0, 2]), np.array([2, 0, 3])).tolist(), ranges(0, np.array([2, 3])).tolist()
    ([5, 6, 2, 3, 4], [0, 1, 0, 1, 2])
    """
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    out: NDArray[np.int64] = np.arange(total) + np.repeat(first - (ends - counts), counts)
    return out


def turns_before(owner: NDArray[Any], turns: int) -> NDArray[np.int64]:
    """Return per entry the one so many before it of the same owner, -1 for the first ones.

    >>> turns_before(np.array([7, 7, 8, 7, 8]), 1).tolist()
    [-1, 0, -1, 1, 2]
    """
    out, order = np.full(len(owner), -1, np.int64), np.argsort(owner, kind="stable")
    behind, ahead = order[turns:], order[:-turns]
    same = owner[behind] == owner[ahead]
    out[behind[same]] = ahead[same]
    return out
