"""Kinds of work as bits of a number, and what follows from them: who can slow whom, and by how much."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from simulator.program.prices import RESOURCE_KINDS, Prices

__all__ = ["kinds_of_items", "longer_beside", "slowed", "slows"]

_BITS = 1 << np.arange(len(RESOURCE_KINDS))
_MANY = 64
"""Interference tables whose consequences are kept."""


def kinds_of_items(prices: Prices) -> NDArray[np.int32]:
    """Return [items] the bits of the kinds of resources that each uses.

    >>> kinds_of_items(Prices.plain(np.ones(2), np.zeros(2))).tolist()
    [0, 0]
    """
    return np.asarray((prices.share > 0.0) @ _BITS, np.int32)


def longer_beside(prices: Prices) -> NDArray[np.float64]:
    """Return [items, bits of the kinds beside it] how many times longer each item takes."""
    longer: NDArray[np.float64] = prices.share @ _worst(prices.slowdown.tobytes())
    longer += 1.0
    return longer


@functools.lru_cache(maxsize=_MANY)
def _worst(slowdown: bytes) -> NDArray[np.float64]:
    """[kinds, bits of the kinds beside it] how much longer a kind takes: as beside the one that slows it most."""
    kinds = len(RESOURCE_KINDS)
    table = np.frombuffer(slowdown).reshape(kinds, kinds)
    bits = np.arange(1 << kinds)
    worst = np.ones((kinds, 1 << kinds))
    for other in range(kinds):
        active = (bits >> other) & 1 == 1
        worst[:, active] = np.maximum(worst[:, active], table[:, other : other + 1])
    return worst - 1.0


def slows(prices: Prices, some: int, others: int) -> int:
    """Return which of the kinds `others` slow one of the kinds `some`, all as bits.

    >>> slows(Prices.plain(np.ones(1), np.zeros(1)), 1, 2)
    0
    """
    return _slowing(prices.slowdown.tobytes(), some) & others


def slowed(prices: Prices, some: int, others: int) -> int:
    """Return which of the kinds `some` are slowed by one of the kinds `others`, all as bits."""
    return _slowing(prices.slowdown.T.tobytes(), others) & some


@functools.lru_cache(maxsize=_MANY * 64)
def _slowing(slowdown: bytes, some: int) -> int:
    """The kinds of the second axis that slow one of `some`."""
    kinds = len(RESOURCE_KINDS)
    mine = (some >> np.arange(kinds)) & 1 == 1
    return int((np.frombuffer(slowdown).reshape(kinds, kinds)[mine] > 1.0).any(axis=0) @ _BITS)
