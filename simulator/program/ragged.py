"""Lists of different lengths, laid end to end in one array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ranges"]


def ranges(first: Any, counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return `first`, `first + 1`, ... of each list, as many as it has entries, end to end.

    >>> ranges(np.array([5, 0, 2]), np.array([2, 0, 3])).tolist(), ranges(0, np.array([2, 3])).tolist()
    ([5, 6, 2, 3, 4], [0, 1, 0, 1, 2])
    """
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    out: NDArray[np.int64] = np.arange(total) + np.repeat(first - (ends - counts), counts)
    return out
