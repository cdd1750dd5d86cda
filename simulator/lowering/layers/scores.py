"""How many scores the masks of attention leave."""

from __future__ import annotations

__all__ = ["scores_left"]


def scores_left(keys: float, window: int, chunked: bool) -> float:
    """Return the scores that a causal mask, and a window, leave of a whole sequence's square (continuous).

    >>> scores_left(8, 0, False), scores_left(8, 2, False), scores_left(8, 2, True)
    (32.0, 14.0, 8.0)
    """
    if not 0 < window < keys:
        return keys * keys / 2.0
    if chunked:
        return (keys // window) * window * window / 2.0 + (keys % window) ** 2 / 2.0
    return window * window / 2.0 + window * (keys - window)
