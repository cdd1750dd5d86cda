"""The compiled inside of `automatic_schedule`: one list schedule of one policy, and a search around the best.

Ranks decide in order of time.  A free rank takes an input gradient that is there, or a forward that is there and that
its memory and its policy allow; a weight gradient fills the gaps.  Memory counts chunks: one more at the start of F,
one less at the end of W.  A rank keeps room for its deeper chunks, so that no order ends in a deadlock.

A policy is four numbers per rank: `cap` (forwards begun, input gradients not), `debt` (weight gradients put off before
one goes ahead of a forward), `first` (1: forward before input gradient), `fits` (1: a gap takes a weight gradient only
if the next action known to come is not delayed).  A twist changes one decision: 1 the other of F and I first, 2 a
weight gradient first, 3 nothing but what is known to come next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from simulator.compiled import listen

__all__ = ["list_schedule", "search"]

listen()

Array = Any
_NEVER = 1e300


@njit(cache=True, nogil=True)
def _best_line(
    kind: int, rank: int, held: Array, limit: int, full: int, chunks: int, m: int, count: Array, arrival: Array
) -> tuple[int, float]:
    """The line of a rank whose next action of this kind (0 F, 1 I) comes first, deeper chunks before others; or -1."""
    best, least = -1, _NEVER
    turns = held.shape[1]
    for turn in range(turns):
        chunk = held[rank, turn]
        i = count[kind, chunk]
        if i >= m:
            continue
        if kind == 0 and full + 1 > limit - (turns - 1 - turn):
            continue
        if kind == 1 and count[0, chunk] <= i:
            continue
        when = arrival[kind, chunk, i]
        if when < least or (when == least and kind == 0 and best >= 0):
            best, least = chunk, when
    return best, least


@njit(cache=True, nogil=True)
def list_schedule(
    held: Array,
    times: Array,
    transfer: float,
    limit: int,
    m: int,
    policy: Array,
    twists: Array,
    kinds: Array,
    which: Array,
    numbers: Array,
    arrival: Array,
) -> float:
    """Fill kinds, which (chunk) and numbers (microbatch) [ranks, actions]; return the makespan, or 1e300 if none.

    Args:
        held: [ranks, turns] chunks of each rank, in the order in which a microbatch meets them.
        times: [3, ranks] of F, I and W of one chunk.
        limit: chunks' activations that a rank may hold.
        policy: [4, ranks] cap, debt, first, fits.
        twists: [ranks, actions] 0 none, else see the module.
        arrival: [2, chunks, m] work space.
    """
    ranks, turns = held.shape
    chunks = ranks * turns
    size = 3 * turns * m
    owner = np.empty(chunks, np.int64)
    for r in range(ranks):
        for turn in range(turns):
            owner[held[r, turn]] = r
    arrival[:] = _NEVER
    arrival[0, 0, :] = 0.0
    count = np.zeros((3, chunks), np.int64)
    taken, full, flying = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    free, decide = np.zeros(ranks), np.full(ranks, _NEVER)
    decide[owner[0]] = 0.0
    left = ranks * size
    makespan = 0.0
    while left:
        rank = 0
        for r in range(1, ranks):
            if decide[r] < decide[rank]:
                rank = r
        now = decide[rank]
        if now >= _NEVER:
            return _NEVER
        place = taken[rank]
        twist = twists[rank, place]
        first = (policy[2, rank] > 0) != (twist == 1)
        back, back_at = _best_line(1, rank, held, limit, full[rank], chunks, m, count, arrival)
        ahead, ahead_at = -1, _NEVER
        if flying[rank] < policy[0, rank]:
            ahead, ahead_at = _best_line(0, rank, held, limit, full[rank], chunks, m, count, arrival)
        owed, debt = -1, 0
        for turn in range(turns):
            chunk = held[rank, turn]
            waits = count[1, chunk] - count[2, chunk]
            debt += waits
            if waits and (owed < 0 or count[2, chunk] < count[2, owed]):
                owed = chunk
        kind, chunk = -1, -1
        soon = min(back_at, ahead_at)
        if owed >= 0 and twist == 2:
            kind, chunk = 2, owed
        elif twist == 3 and soon > now and soon < _NEVER:
            decide[rank] = soon
            twists[rank, place] = 0
            continue
        elif back >= 0 and back_at <= now and not (first and ahead >= 0 and ahead_at <= now):
            kind, chunk = 1, back
        elif owed >= 0 and debt >= policy[1, rank]:
            kind, chunk = 2, owed
        elif ahead >= 0 and ahead_at <= now:
            kind, chunk = 0, ahead
        elif owed >= 0 and (policy[3, rank] == 0 or soon >= _NEVER or now + times[2, rank] <= soon):
            kind, chunk = 2, owed
        if kind < 0:
            decide[rank] = soon
            continue
        i = count[kind, chunk]
        count[kind, chunk] += 1
        kinds[rank, place], which[rank, place], numbers[rank, place] = kind, chunk, i
        taken[rank] += 1
        end = now + times[kind, rank]
        free[rank] = decide[rank] = end
        makespan = max(makespan, end)
        left -= 1
        if taken[rank] == size:
            decide[rank] = _NEVER
        if kind == 2:
            full[rank] -= 1
            continue
        if kind == 0:
            full[rank] += 1
            flying[rank] += 1
            step = chunk + 1
            if step == chunks:
                arrival[1, chunk, i] = end
                continue
        else:
            flying[rank] -= 1
            step = chunk - 1
            if step < 0:
                continue
        other = owner[step]
        when = end if other == rank else end + transfer
        arrival[kind, step, i] = when
        if taken[other] < size:
            decide[other] = min(decide[other], max(free[other], when))
    return makespan


@njit(cache=True, nogil=True)
def _copy(values: Array, to: Array) -> None:
    """Copy a matrix: `to[:] = values`, which numba compiles for seconds."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            to[i, j] = values[i, j]


@njit(cache=True, nogil=True)
def search(
    held: Array,
    times: Array,
    transfer: float,
    limit: int,
    m: int,
    policy: Array,
    twists: Array,
    bound: float,
    rounds: int,
    seed: int,
) -> float:
    """Change one number or one decision at a time and keep what is not worse; policy and twists hold the best at the end.

    Args:
        bound: a makespan that nothing beats; the search ends there.
        rounds: changes to try.
    """
    np.random.seed(seed)
    ranks, turns = held.shape
    size = 3 * turns * m
    kinds, which = np.empty((ranks, size), np.int8), np.empty((ranks, size), np.int32)
    numbers, arrival = np.empty((ranks, size), np.int32), np.empty((2, ranks * turns, m))
    trial = twists.copy()
    best = list_schedule(held, times, transfer, limit, m, policy, trial, kinds, which, numbers, arrival)
    for _ in range(rounds):
        if best <= bound * (1 + 1e-12):
            break
        changed, turned = policy.copy(), twists.copy()
        for _ in range(1 + np.random.randint(0, 3)):
            rank = np.random.randint(0, ranks)
            what = np.random.randint(0, 8)
            if what == 0:
                changed[0, rank] = max(1, changed[0, rank] + np.random.randint(-1, 2))
            elif what == 1:
                changed[1, rank] = max(1, changed[1, rank] + np.random.randint(-1, 2))
            elif what == 2:
                changed[2 + np.random.randint(0, 2), rank] = np.random.randint(0, 2)
            else:
                turned[rank, np.random.randint(0, size)] = np.random.randint(0, 4)
        _copy(turned, trial)
        makespan = list_schedule(held, times, transfer, limit, m, changed, trial, kinds, which, numbers, arrival)
        if makespan <= best:
            best = makespan
            _copy(changed, policy)
            _copy(turned, twists)
    return best
