"""The compiled form of the greedy rule of Hanayo.  This module imports numba, so the schedule imports it in `order`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["greedy_order"]

Array = Any


@njit(cache=True, nogil=True)
def _choose(stages: Array, last: int, microbatches: int, begun: Array, ended: Array) -> tuple[int, int]:
    """Kind and stage of the ready action of a rank that is a backward, then lowest in microbatch and stage; or -1."""
    for kind in (1, 0):
        chosen, lowest = -1, microbatches
        for stage in stages:
            i = begun[kind, stage]
            if i >= lowest:
                continue
            if kind == 0:
                ready = stage == 0 or ended[0, stage - 1] > i
            else:
                ready = ended[0, stage] > i and (stage == last or ended[1, stage + 1] > i)
            if ready:
                chosen, lowest = stage, i
        if chosen >= 0:
            return kind, chosen
    return -1, -1


@njit(cache=True, nogil=True)
def greedy_order(held: Array, microbatches: int, seconds: Array) -> tuple[Array, Array, Array]:
    """Return kind, stage and microbatch [ranks, actions] of ranks that always take the best ready action.

    Args:
        held: [ranks, v] stages of each rank, rising.
        microbatches: number of microbatches.
        seconds: time of F and of B, whole numbers.
    """
    ranks, turns = held.shape
    stages = ranks * turns
    size = 2 * turns * microbatches
    kinds = np.empty((ranks, size), np.int8)
    chunks = np.empty((ranks, size), np.int32)
    numbers = np.empty((ranks, size), np.int32)
    begun, ended = np.zeros((2, stages), np.int64), np.zeros((2, stages), np.int64)
    busy = np.full(ranks, -1, np.int64)
    until, taken = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    now, left = 0, ranks * size
    while left:
        for rank in range(ranks):
            if busy[rank] >= 0 and until[rank] == now:
                ended[busy[rank] // stages, busy[rank] % stages] += 1
                busy[rank] = -1
        for rank in range(ranks):
            if busy[rank] >= 0:
                continue
            kind, stage = _choose(held[rank], stages - 1, microbatches, begun, ended)
            if kind < 0:
                continue
            place = taken[rank]
            kinds[rank, place], chunks[rank, place], numbers[rank, place] = kind, stage, begun[kind, stage]
            begun[kind, stage] += 1
            taken[rank] += 1
            busy[rank], until[rank] = kind * stages + stage, now + seconds[kind]
            left -= 1
        now += 1
    return kinds, chunks, numbers
