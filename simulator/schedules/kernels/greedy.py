"""The compiled form of `simulator.schedules.greedy`.  This module imports numba, so schedules import it in `order`.

A line is one chunk of one lane, numbered lane * chunks + chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.compiled import compiled, part

__all__ = ["greedy_lines"]

Array = Any


@part()
def _choose(held: Array, chunks: int, microbatches: int, unit: int, begun: Array, ended: Array) -> tuple[int, int]:
    """Kind and line of the ready action with the least (forward, precedence) among the lines that a rank holds, or -1."""
    for kind in (1, 0):
        chosen, least = -1, -1
        for line in held:
            i, chunk = begun[kind, line], line % chunks
            if i >= microbatches:
                continue
            if kind == 0:
                ready = chunk == 0 or ended[0, line - 1] > i
            else:
                ready = ended[0, line] > i and (chunk == chunks - 1 or ended[1, line + 1] > i)
            depth = chunks - 1 - chunk if kind == 0 else chunk
            key = (i // unit * chunks + depth) * unit + i % unit if unit else i * chunks + chunk
            if ready and (chosen < 0 or key < least):
                chosen, least = line, key
        if chosen >= 0:
            return kind, chosen
    return -1, -1


@compiled()
def greedy_lines(held: Array, chunks: int, microbatches: int, unit: int, ticks: Array) -> tuple[Array, Array, Array]:
    """Return kind, line and number in its lane [ranks, actions] of ranks that always take the best ready action.

    Args:
        held: [ranks, lines of each].
        chunks: chunks of a lane.
        microbatches: of one lane.
        unit: microbatches of one lane and unit, which go first, deeper chunks before others; 0: lowest microbatch
            first, then lowest chunk.
        ticks: time of F and of B.
    """
    ranks, turns = held.shape
    lines = ranks * turns
    size = 2 * turns * microbatches
    kinds = np.empty((ranks, size), np.int8)
    which = np.empty((ranks, size), np.int32)
    numbers = np.empty((ranks, size), np.int32)
    begun, ended = np.zeros((2, lines), np.int64), np.zeros((2, lines), np.int64)
    busy = np.full(ranks, -1, np.int64)
    until, taken = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    now, left = 0, ranks * size
    while left:
        for rank in range(ranks):
            if busy[rank] >= 0 and until[rank] == now:
                ended[busy[rank] // lines, busy[rank] % lines] += 1
                busy[rank] = -1
        for rank in range(ranks):
            if busy[rank] >= 0:
                continue
            kind, line = _choose(held[rank], chunks, microbatches, unit, begun, ended)
            if kind < 0:
                continue
            place = taken[rank]
            kinds[rank, place], which[rank, place], numbers[rank, place] = kind, line, begun[kind, line]
            begun[kind, line] += 1
            taken[rank] += 1
            busy[rank], until[rank] = kind * lines + line, now + ticks[kind]
            left -= 1
        now += 1
    return kinds, which, numbers
