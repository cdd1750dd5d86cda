"""The compiled form of the reorder pass of V-Half and V-Min; told in `simulator.schedules.v_reorder`.

Passes 0..3 are F0, F1, I1, I0; 4 is W.  A pass of microbatch i on a rank has the entry `(pass * ranks + rank) * m + i`
of a flat array of slots; the n-th W of a rank has `4 * ranks * m + rank * 2m + n`.  This module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.compiled import compiled, part

__all__ = ["filled", "pulled", "read", "squeezed"]

Array = Any

# Loops in place of array assignments and reductions: numba compiles each of those for seconds, and these in none.


@part()
def _end(slots: Array, count: int) -> int:
    """The slot after the last of the first `count` entries."""
    end = 0
    for entry in range(count):
        end = max(end, slots[entry] + 1)
    return end


@part()
def _rank_and_pass(entry: int, ranks: int, m: int) -> tuple[int, int, int]:
    """Rank, pass and number of an entry."""
    if entry >= 4 * ranks * m:
        rank, number = divmod(entry - 4 * ranks * m, 2 * m)
        return rank, 4, number
    row, number = divmod(entry, m)
    return row % ranks, row // ranks, number


@compiled()
def filled(slots: Array, ranks: int, m: int) -> Array:
    """Return `slots` of passes 0..3 followed by those of W: a free slot takes a waiting W."""
    out = np.empty(6 * ranks * m, np.int64)
    size = _end(slots, 4 * ranks * m)
    content = np.full((ranks, size), -1, np.int8)
    for entry in range(4 * ranks * m):
        out[entry] = slots[entry]
        rank, kind, _ = _rank_and_pass(entry, ranks, m)
        content[rank, slots[entry]] = kind
    for rank in range(ranks):
        waiting, number, slot = 0, 0, 0
        place = 4 * ranks * m + rank * 2 * m
        while number < 2 * m:
            kind = content[rank, slot] if slot < size else -1
            if kind >= 2:
                waiting += 1
            elif kind < 0 and waiting:
                out[place + number] = slot
                waiting -= 1
                number += 1
            slot += 1
    return out


@compiled()
def read(slots: Array, ranks: int, m: int) -> tuple[Array, Array]:
    """Return pass and microbatch [ranks, 6m] by slot; a free slot takes a waiting W, 4 of pass 2 before 5 of pass 3."""
    kinds, numbers = np.empty((ranks, 6 * m), np.int8), np.empty((ranks, 6 * m), np.int32)
    size = _end(slots, 4 * ranks * m)
    content = np.full((ranks, size), -1, np.int64)
    for entry in range(4 * ranks * m):
        content[_rank_and_pass(entry, ranks, m)[0], slots[entry]] = entry
    for rank in range(ranks):
        waiting, done = np.zeros(2, np.int64), np.zeros(2, np.int64)
        place, slot = 0, 0
        while place < 6 * m:
            entry = content[rank, slot] if slot < size else -1
            if entry >= 0:
                _, kind, number = _rank_and_pass(entry, ranks, m)
                kinds[rank, place], numbers[rank, place] = kind, number
                if kind >= 2:
                    waiting[kind - 2] += 1
                place += 1
            elif waiting[0] + waiting[1]:
                which = 0 if waiting[0] else 1
                kinds[rank, place], numbers[rank, place] = 4 + which, done[which]
                waiting[which] -= 1
                done[which] += 1
                place += 1
            slot += 1
    return kinds, numbers


@compiled()
def squeezed(slots: Array, turn: Array, ranks: int, m: int) -> Array:
    """Return new slots: every rank keeps its order and takes each action as early as its inputs allow."""
    out = np.empty_like(slots)
    free = np.zeros(ranks, np.int64)
    for entry in turn:
        rank, kind, number = _rank_and_pass(entry, ranks, m)
        start = free[rank]
        if kind < 4:
            step = -1 if kind % 2 == 0 else 1
            if 0 <= rank + step < ranks:
                start = max(start, out[entry + step * m] + 1)
            if kind > 0:
                start = max(start, out[entry - ranks * m] + 1)
        if number > 0:
            start = max(start, out[entry - 1] + 1)
        out[entry] = start
        free[rank] = start + 1
    return out


@part()
def _walk(content: Array, level: Array, waiting: Array, first: int, explicit: bool) -> int:
    """Write level and waiting W after every slot from `first` on; return the highest level met."""
    now = level[first - 1] if first > 0 else 0
    held = waiting[first - 1] if first > 0 else 0
    most = now
    for slot in range(first, len(content)):
        kind = content[slot]
        if kind == 0 or kind == 1:
            now += 1
        elif kind == 4:
            now -= 1
        elif kind >= 2:
            held += 1
        elif not explicit and held:
            now -= 1
            held -= 1
        level[slot], waiting[slot] = now, held
        most = max(most, now)
    return most


@part()
def _fits(content: Array, level: Array, waiting: Array, new: int, old: int, cap: int, explicit: bool) -> bool:
    """Whether moving what stands in slot `old` to the free slot `new` keeps the level within the cap."""
    moved = content[old]
    if explicit:
        highest = level[new]
        for slot in range(new, old):
            highest = max(highest, level[slot])
        return bool(moved > 1 or highest < cap)
    now = level[new - 1] if new > 0 else 0
    held = waiting[new - 1] if new > 0 else 0
    for slot in range(new, len(content)):
        kind = moved if slot == new else (-1 if slot == old else content[slot])
        if kind == 0 or kind == 1:
            now += 1
            if now > cap:
                return False
        elif kind >= 2:
            held += 1
        elif held:
            now -= 1
            held -= 1
        if slot > old and now == level[slot] and held == waiting[slot]:
            return True
    return True


@part()
def _earliest(slots: Array, content: Array, entry: int, ranks: int, m: int) -> int:
    """The first slot after all inputs of an entry."""
    rank, kind, number = _rank_and_pass(entry, ranks, m)
    after = -1
    if kind < 4:
        step = -1 if kind % 2 == 0 else 1
        if 0 <= rank + step < ranks:
            after = slots[entry + step * m]
        if kind > 0:
            after = max(after, slots[entry - ranks * m])
    else:
        seen = 0
        for slot in range(content.shape[1]):
            if content[rank, slot] == 2 or content[rank, slot] == 3:
                if seen == number:
                    after = slot
                    break
                seen += 1
    if number > 0:
        after = max(after, slots[entry - 1])
    return after + 1


@compiled()
def pulled(given: Array, turn: Array, ranks: int, m: int, explicit: bool) -> Array:
    """Return new slots: before the first I0 and after the last F0 of rank 0, actions move to the first slot that fits.

    Args:
        given: slots, with those of W where `explicit`.
        turn: entries by slot, then rank, then pass.
        explicit: whether W has slots, and actions before the steady phase move too; else W takes free slots.
    """
    slots = given.copy()
    size = _end(slots, len(slots))
    content = np.full((ranks, size), -1, np.int8)
    taken = np.zeros((ranks, size), np.bool_)
    level, waiting = np.zeros((ranks, size), np.int64), np.zeros((ranks, size), np.int64)
    for entry in range(len(slots)):
        rank, kind, _ = _rank_and_pass(entry, ranks, m)
        content[rank, slots[entry]] = kind
    cap = 0
    for rank in range(ranks):
        cap = max(cap, _walk(content[rank], level[rank], waiting[rank], 0, explicit))
    phase = 0
    for entry in turn:
        rank, kind, number = _rank_and_pass(entry, ranks, m)
        old = slots[entry]
        if phase == 0 and kind == 3 and rank == 0:
            phase = 1
        if phase == 1:
            if kind == 0 and number == m - 1:
                phase = 2
        elif phase == 2 or explicit:
            for new in range(_earliest(slots, content, entry, ranks, m), old):
                if taken[rank, new] or not _fits(content[rank], level[rank], waiting[rank], new, old, cap, explicit):
                    continue
                content[rank, new], content[rank, old] = kind, -1
                slots[entry] = new
                _walk(content[rank], level[rank], waiting[rank], new, explicit)
                break
        taken[rank, slots[entry]] = True
    return slots
