"""The reorder pass of V-Half and V-Min: where activations leave room, passes move into earlier slots.

The repeated pattern uses its full memory only in the steady phase.  So in the warm-up and the cool-down each pass, in
the order of slots, moves to the first free slot after its inputs at which no rank holds more than the pattern does at
most.  Twice: with W in slots of their own, and, in the cool-down, with W left to take what is free.  After each time the
gaps are squeezed out.  At last W takes the free slots, that of the upper chunk first.  Every pass counts as one slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Said", "reordered", "reordered_plainly"]

Said = tuple[int, int]
"""A pass (0..3: F0, F1, I1, I0; 4, 5: W of the upper and lower chunk) and its microbatch."""

_Rows = list[list[int]]
"""Slots of one rank: [pass][number]; a fifth row holds those of W."""


def reordered_plainly(offsets: Sequence[Sequence[int]], microbatches: int) -> list[list[Said]]:
    """Return, per rank, what it runs in order, from the slots of microbatch 0 [ranks][4]; the rule as a person reads it."""
    grid = [[[offset + 6 * i for i in range(microbatches)] for offset in rank] for rank in offsets]
    grid = [[*rows, _free(rows)] for rows in grid]
    grid = _squeeze(_pull(grid, explicit=True))
    grid = _pull([rows[:4] for rows in grid], explicit=False)
    grid = _squeeze([[*rows, _free(rows)] for rows in grid])
    return [_read(rows[:4]) for rows in grid]


def _free(rows: _Rows) -> list[int]:
    """Return the slots of W: free ones, as soon as a W waits."""
    return [slot for slot, said in enumerate(_filled(rows)) if said is not None and said[0] >= 4]


def _read(rows: _Rows) -> list[Said]:
    return [said for said in _filled(rows) if said is not None]


def _filled(rows: _Rows) -> list[Said | None]:
    """Return what stands in each slot, W of the upper chunk before that of the lower one."""
    at = {slot: (kind, i) for kind, slots in enumerate(rows) for i, slot in enumerate(slots)}
    out: list[Said | None] = []
    waiting, done = [0, 0], [0, 0]
    while len(out) <= max(at) or any(waiting):
        said = at.get(len(out))
        if said is not None and said[0] >= 2:
            waiting[said[0] - 2] += 1
        if said is None and any(waiting):
            which = 0 if waiting[0] else 1
            said = 4 + which, done[which]
            waiting[which] -= 1
            done[which] += 1
        out.append(said)
    return out


def _peak(rows: _Rows) -> int:
    """Return the most activations held; without slots of their own, W take the free ones."""
    at = {slot: kind for kind, slots in enumerate(rows) for slot in slots}
    held = most = waiting = 0
    for slot in range(max(at) + 1):
        kind = at.get(slot)
        if kind in (0, 1):
            held += 1
            most = max(most, held)
        elif kind in (2, 3):
            waiting += 1
        elif kind == 4 or (kind is None and len(rows) == 4 and waiting):
            held -= 1
            waiting -= 1
    return most


def _in_turn(grid: list[_Rows]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (slot, rank, pass, number) of all, by slot."""
    yield from sorted(
        (slot, rank, kind, number)
        for rank, rows in enumerate(grid)
        for kind, slots in enumerate(rows)
        for number, slot in enumerate(slots)
    )


def _inputs(grid: list[_Rows], rank: int, kind: int, number: int) -> list[int]:
    """Return the slots of what an action waits for."""
    rows = grid[rank]
    before = [rows[kind][number - 1]] if number else []
    if kind == 4:
        return [*before, sorted(rows[2] + rows[3])[number]]
    neighbour = rank - 1 if kind % 2 == 0 else rank + 1
    if 0 <= neighbour < len(grid):
        before.append(grid[neighbour][kind][number])
    return [*before, rows[kind - 1][number]] if kind else before


def _pull(grid: list[_Rows], explicit: bool) -> list[_Rows]:
    """Return the grid with warm-up (only if W has slots) and cool-down moved forward as far as memory allows."""
    turn = list(_in_turn(grid))
    cap = max(map(_peak, grid))
    taken: list[set[int]] = [set() for _ in grid]
    phase = 0
    for slot, rank, kind, number in turn:
        rows = grid[rank]
        if phase == 0 and (rank, kind) == (0, 3):
            phase = 1
        if phase == 1:
            phase = 2 if (kind, number) == (0, len(rows[0]) - 1) else 1
        elif phase == 2 or explicit:
            for new in range(max(_inputs(grid, rank, kind, number), default=-1) + 1, slot):
                rows[kind][number] = new
                if new not in taken[rank] and _peak(rows) <= cap:
                    break
                rows[kind][number] = slot
        taken[rank].add(rows[kind][number])
    return grid


def _squeeze(grid: list[_Rows]) -> list[_Rows]:
    """Return the grid with every action as early as the order of its rank and its inputs allow."""
    out = [[[0] * len(slots) for slots in rows] for rows in grid]
    free = [0] * len(grid)
    for _, rank, kind, number in _in_turn(grid):
        inputs = _inputs(out, rank, kind, number) if kind < 4 else []
        out[rank][kind][number] = free[rank] = max([free[rank], *(slot + 1 for slot in inputs)])
        free[rank] += 1
    return out


def reordered(offsets: Sequence[Sequence[int]], microbatches: int) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return pass and microbatch [ranks, 6 * microbatches] of `reordered_plainly`, from compiled code."""
    from simulator.schedules.kernels import reorder

    ranks, m = len(offsets), microbatches
    slots = (np.array(offsets, np.int64).T[:, :, None] + 6 * np.arange(m)).ravel()
    slots = reorder.filled(slots, ranks, m)
    slots = reorder.pulled(slots, _turn(slots, ranks, m), ranks, m, True)
    slots = reorder.squeezed(slots, _turn(slots, ranks, m), ranks, m)[: 4 * ranks * m]
    slots = reorder.filled(reorder.pulled(slots, _turn(slots, ranks, m), ranks, m, False), ranks, m)
    kinds, numbers = reorder.read(reorder.squeezed(slots, _turn(slots, ranks, m), ranks, m), ranks, m)
    return kinds, numbers


def _turn(slots: NDArray[np.int64], ranks: int, m: int) -> NDArray[np.int64]:
    """Return the entries by slot, then rank; a rank has one entry per slot."""
    rank = np.tile(np.repeat(np.arange(ranks), m), 4)
    if len(slots) > len(rank):
        rank = np.concatenate([rank, np.repeat(np.arange(ranks), 2 * m)])
    return np.argsort(slots * ranks + rank, kind="stable")
