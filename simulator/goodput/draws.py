"""Random numbers by place, not by order: the i-th number of a stream is a function of (seed, run, stream, i).

So both simulations draw the same failures, a lever is tried on the very same runs, and the same seed gives the same bytes.
The function is SplitMix64's (Steele, Lea and Flood, OOPSLA 2014, section 4): a counter times the golden ratio, mixed twice.
"""

from __future__ import annotations

import numpy as np
from numba import float64, int64, njit, uint64

from simulator.compiled import listen

__all__ = ["key_of", "uniform"]

listen()

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BITS = 2.0**-53


@njit(uint64(uint64), cache=True)
def _mix(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@njit(uint64(int64, int64, int64), cache=True)
def key_of(seed: int, run: int, stream: int) -> np.uint64:
    """Return the key of a stream of numbers."""
    key = _mix(np.uint64(seed) + _GOLDEN)
    key = _mix(key + _GOLDEN * np.uint64(run + 1))
    return _mix(key + _GOLDEN * np.uint64(stream + 1))


@njit(float64(uint64, int64), cache=True)
def uniform(key: np.uint64, index: int) -> float:
    """Return number `index` of a stream: above 0 and below 1."""
    return (np.float64(_mix(key + _GOLDEN * np.uint64(index + 1)) >> np.uint64(11)) + 0.5) * _BITS
