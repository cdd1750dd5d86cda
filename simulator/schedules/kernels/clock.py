"""The compiled loop behind `simulator.schedules.order_times`; its meaning is told there.

A rank runs on until it waits for an atom of work that has not passed the neighbour chunk; it parks there, and whoever does that
work wakes it.  What an atom's neighbour may know, and when, stands in one table, so that no list of waits is made first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.compiled import compiled, part

__all__ = ["run_order"]

_UNKNOWN = -1.0
"""An atom that has not passed; below it stands the parked rank, as -2 - rank."""


@part()
def _atoms(microbatch: Any, count: Any, part: Any, parts: Any, grain: int) -> tuple[Any, Any]:
    """First atom of an action, and how many."""
    if grain == 1:
        return microbatch, count
    if parts == grain:
        return microbatch * grain + part, 1
    each = grain // parts
    return microbatch * grain + part * each, count * each


@part()
def _arrival(passed: Any, side: int, before: int, first: Any, many: Any, rank: int) -> float:
    """When all these atoms are there; -1 where one is not, and the rank is parked at it."""
    latest = 0.0
    for atom in range(first, first + many):
        known = passed[side, before, atom]
        if known < 0.0:
            passed[side, before, atom] = -2.0 - rank
            return _UNKNOWN
        if known > latest:
            latest = known
    return latest


@compiled()
def run_order(  # type: ignore[no-untyped-def]
    rank_offsets, kind, chunk, microbatch, count, part, parts, weight, pair,
    grain, atoms, alone, fused, weighted, lane_of, delay, seconds, share, start, end, ranks_out,
):  # fmt: skip
    """Fill start and end of every action and the figures of every rank; return how many actions can run.

    Args:
        grain: atoms of a microbatch; atoms: of all of them.
        alone: every action covers one atom that is a microbatch; fused: there are pairs; weighted: weights other than 1.
            Columns that say nothing are not read: 64 ranks read each of them in 64 places at once.
        delay: [2, lanes, chunks] seconds from the end of a chunk's forward (0) or backward (1) to its neighbour.
        seconds: [4, ranks] of a microbatch on a rank's whole share, by kind; share: what a chunk is of that.
        ranks_out: [5, ranks] busy, first start, last end, peak, peak where I gives back (both in chunks).
    """
    ranks, chunks = len(rank_offsets) - 1, delay.shape[2]
    passed = np.full((2, chunks, atoms), _UNKNOWN)
    at = rank_offsets[:-1].copy()
    free, held, edge = np.zeros(ranks), np.zeros((2, ranks)), np.zeros(ranks)
    ranks_out[1] = np.inf
    ranks_out[0], ranks_out[2:] = 0.0, 0.0
    stack = np.empty(ranks, np.int64)
    for rank in range(ranks):
        stack[rank] = ranks - 1 - rank
    top, done = ranks, 0
    while top > 0:
        top -= 1
        rank = stack[top]
        action, stop = at[rank], rank_offsets[rank + 1]
        now, busy, since = free[rank], ranks_out[0, rank], edge[rank]
        late, early = held[0, rank], held[1, rank]
        most, most_early = ranks_out[3, rank], ranks_out[4, rank]
        if action == rank_offsets[rank]:
            now = 0.0
        while action < stop:
            width = 2 if fused and pair[action] == action + 1 else 1
            ready, spent = now, 0.0
            for n in range(action, action + width):
                what, c = kind[n], chunk[n]
                spent += seconds[what, rank] * (weight[n] if weighted else 1.0) * share
                if what == 3:
                    continue
                side = 0 if what == 0 else 1
                before = c - 1 + 2 * side
                if before < 0 or before >= chunks:
                    continue
                first, many = np.int64(microbatch[n]), np.int64(1)
                if not alone:
                    first, many = _atoms(first, count[n], part[n], parts[n], grain)
                seen = _arrival(passed, side, before, first, many, rank)
                if seen < 0.0:
                    ready = _UNKNOWN
                    break
                if seen > ready:
                    ready = seen
            if ready < 0.0:
                break
            if action == rank_offsets[rank]:
                ranks_out[1, rank] = ready
            now = ready + spent
            busy += spent
            for n in range(action, action + width):
                start[n], end[n] = ready, now
                what = kind[n]
                if what == 0:
                    if ready > since:
                        most, most_early = max(most, late), max(most_early, early)
                        since = ready
                    late += weight[n] if weighted else 1.0
                    early += weight[n] if weighted else 1.0
            for n in range(action, action + width):
                what, c = kind[n], chunk[n]
                if what != 0:
                    if now > since:
                        most, most_early = max(most, late), max(most_early, early)
                        since = now
                    if what != 2:
                        late -= weight[n] if weighted else 1.0
                    if what != 3:
                        early -= weight[n] if weighted else 1.0
                if what == 3:
                    continue
                side = 0 if what == 0 else 1
                seen = now + delay[side, lane_of[microbatch[n]], c]
                first, many = np.int64(microbatch[n]), np.int64(1)
                if not alone:
                    first, many = _atoms(first, count[n], part[n], parts[n], grain)
                for atom in range(first, first + many):
                    parked = passed[side, c, atom]
                    if parked < _UNKNOWN:
                        stack[top] = np.int64(-2.0 - parked)
                        top += 1
                    passed[side, c, atom] = seen
            action += width
        done += action - at[rank]
        at[rank], free[rank], edge[rank] = action, now, since
        held[0, rank], held[1, rank] = late, early
        ranks_out[0, rank], ranks_out[2, rank] = busy, now
        ranks_out[3, rank], ranks_out[4, rank] = max(most, late) if action == stop else most, most_early
        if action == stop:
            ranks_out[4, rank] = max(most_early, early)
    return done
