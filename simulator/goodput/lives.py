"""When components of one kind fail, one after another: the readable form, for `readable.py`.

Failures at a constant rate have no memory: all components together fail at their number times that rate.  Else lives are Weibull:
of n components that are left the next fails when the hazard of one has grown by an exponential number over n (Rényi's
representation of order statistics), and every component that was replaced lives anew.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Any

from simulator.goodput.draws import uniform
from simulator.goodput.run_model import Causes

__all__ = ["failure_times"]


def failure_times(causes: Causes, cause: int, key: Any) -> Iterator[float]:
    """Yield the times at which a component of this kind fails [s], without end; `key` is that of its random numbers."""
    scale, shape, age = (float(column[cause]) for column in (causes.scale, causes.shape, causes.age))
    left, index = int(causes.count[cause]), 0

    def exponential() -> float:
        nonlocal index
        index += 1
        return -math.log(uniform(key, index - 1))

    if shape == 1.0:
        moment = 0.0
        while True:
            moment += exponential() * scale / left
            yield moment
    hazard = (age / scale) ** shape + exponential() / left
    first = scale * hazard ** (1.0 / shape) - age
    renewed: list[float] = []
    while True:
        if not renewed or first < renewed[0]:
            moment = first
            yield moment
            heapq.heappush(renewed, moment + scale * exponential() ** (1.0 / shape))
            left, first = left - 1, math.inf
            if left:
                hazard += exponential() / left
                first = scale * hazard ** (1.0 / shape) - age
        else:
            moment = renewed[0]
            yield moment
            heapq.heapreplace(renewed, moment + scale * exponential() ** (1.0 / shape))
