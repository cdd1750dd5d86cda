"""The rules of a program about forward and backward: every part of every microbatch once, and in order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.program.broken import refuse
from simulator.program.program import COMPUTE, FusedSegment, Program
from simulator.program.ragged import ranges

__all__ = ["PAIR", "actions_are_in_order", "actions_are_whole"]

PAIR = 5
"""The action of a fused pair: the forward of one microbatch and the backward of another."""


class _Actions(NamedTuple):
    """One entry per row and atom: the row, its action 0..3, and a number for its (step, lane, chunk, microbatch, atom).

    An atom is the largest piece of a microbatch that no action cuts; without slices it is a microbatch.
    """

    row: NDArray[np.int32]
    action: NDArray[np.int8]
    key: NDArray[np.int64]
    keys: int


def actions_are_whole(program: Program) -> None:
    """Counts, slices and pairs mean something.

    Raises:
        ProgramError: an action of no microbatch, a slice out of range, or half a pair.
    """
    rows = np.arange(program.size, dtype=np.int32)
    count, slices, cut = (_column(program, name, default) for name, default in _DEFAULTS)
    refuse(program, rows, count < 1, "an action covers one or more microbatches")
    refuse(program, rows, (slices < 1) | (cut < 0) | (cut >= slices), "slice lies in 0..slices - 1")
    refuse(program, rows, (slices > 1) & (count > 1), "an action is a slice of a microbatch or whole ones, not both")
    pair = program.action == PAIR
    if not pair.any() and not len(program.second_chunk) and not len(program.second_microbatch):
        return
    second_chunk, second_microbatch = (_column(program, f"second_{name}", -1) for name in ("chunk", "microbatch"))
    half = (pair != (second_chunk >= 0)) | (pair != (second_microbatch >= 0))
    refuse(program, rows, half, "a fused pair, and nothing else, names a second chunk and microbatch")
    fused = np.array([isinstance(item, FusedSegment) for item in program.items], bool)
    refuse(program, rows, fused[program.item] != pair, "a fused pair, and nothing else, runs a fused segment")


def actions_are_in_order(program: Program) -> None:
    """Each (chunk, microbatch, lane, step): one F, then one B, or one I and then one W, all on one rank.

    Raises:
        ProgramError: an action is missing, double, too early or elsewhere.
    """
    found = _entries(program)
    if len(found.row) == 0:
        return
    row, action, key = found.row, found.action, found.key
    first, last = np.full((4, found.keys), -1, np.int32), np.full((4, found.keys), -1, np.int32)
    back = np.arange(len(row) - 1, -1, -1)
    last[action, key] = row  # of several rows the last one stays
    first[action[back], key[back]] = row[back]
    _parts_occur_once(program, found, first != last)
    (b, i, w), there = first[1:], first >= 0
    rules = (
        (1, ~there[0], "a backward needs its forward; there is none of this microbatch"),
        (2, ~there[0], "an input gradient needs its forward; there is none of this microbatch"),
        (1, there[2] | there[3], "a backward is whole (B) or split (I and W), not both"),
        (2, ~there[3], "an input gradient (I) needs a weight gradient (W) after it"),
        (3, ~there[2], "a weight gradient (W) needs an input gradient (I) before it"),
        (1, last[0] > b, "a forward comes before its backward in the order of rows"),
        (2, last[0] > i, "a forward comes before its input gradient in the order of rows"),
        (3, last[2] > w, "an input gradient comes before its weight gradient in the order of rows"),
    )
    for kind, wrong, rule in rules:
        refuse(program, first[kind], there[kind] & wrong, rule)
    rank, home = program.rank[row], np.empty(found.keys, np.int32)
    home[key] = rank
    refuse(program, row, home[key] != rank, "all actions of a microbatch on a chunk are on one rank")


_DEFAULTS = (("count", 1), ("slices", 1), ("slice", 0))


def _column(program: Program, name: str, default: int) -> NDArray[Any]:
    """Return a column that may be empty, which means the default everywhere."""
    values: NDArray[Any] = getattr(program, name)
    return values if len(values) else np.full(program.size, default, values.dtype)


def _entries(program: Program) -> _Actions:
    """Return what the compute rows do, pairs as a forward and a backward, everything cut into atoms."""
    computes = (program.action >= 0) & (program.kind == COMPUTE)
    row = np.flatnonzero(computes & (program.action != 4)).astype(np.int32)
    action, chunk, microbatch, lane = (getattr(program, n)[row] for n in ("action", "chunk", "microbatch", "lane"))
    if len(program.second_chunk) and (action == PAIR).any():
        pair = row[action == PAIR]
        back = _backward_of_pairs(program, pair)
        row = np.concatenate([row, pair])
        action = np.concatenate([np.where(action == PAIR, 0, action), back])
        chunk = np.concatenate([chunk, program.second_chunk[pair]])
        lane_of = np.zeros(int(max(microbatch.max(), program.second_microbatch[pair].max())) + 1, np.int8)
        lane_of[microbatch] = lane  # a microbatch stays in one lane; the two of a pair may be in different ones
        lane = np.concatenate([lane, lane_of[program.second_microbatch[pair]]])
        microbatch = np.concatenate([microbatch, program.second_microbatch[pair]])
        sort = np.argsort(row, kind="stable")
        row, action, chunk, microbatch, lane = (column[sort] for column in (row, action, chunk, microbatch, lane))
    if len(row) and (len(program.count) or len(program.slices)):
        count, slices, cut = (_column(program, name, default)[row].astype(np.int64) for name, default in _DEFAULTS)
        grain = int(np.lcm.reduce(np.unique(slices)))
        each = count * (grain // slices)
        begin = microbatch.astype(np.int64) * grain + cut * (grain // slices)
        row, action, chunk, lane = (np.repeat(column, each) for column in (row, action, chunk, lane))
        microbatch = ranges(begin, each)
    if len(row) == 0:
        return _Actions(row, action, np.zeros(0, np.int64), 0)
    return _Actions(row, action, *_dense_key([program.step[row], lane, chunk, microbatch]))


def _backward_of_pairs(program: Program, pair: NDArray[np.int32]) -> NDArray[np.int8]:
    """A pair's backward is whole (1), or the input half (2) when a weight gradient of the same chunk and microbatch runs."""
    weight = np.flatnonzero((program.action == 3) & (program.kind == COMPUTE))
    mine = program.second_chunk[pair].astype(np.int64) << 32 | program.second_microbatch[pair]
    theirs = program.chunk[weight].astype(np.int64) << 32 | program.microbatch[weight]
    return np.where(np.isin(mine, theirs), 2, 1).astype(np.int8)


def _parts_occur_once(program: Program, found: _Actions, several: NDArray[np.bool_]) -> None:
    """An action with several rows is a block that was cut: its rows are different parts."""
    if not several.any():
        return
    doubtful = np.flatnonzero(several[found.action, found.key])
    row = found.row[doubtful]
    cell, _ = _dense_key([found.action[doubtful], found.key[doubtful], program.part[row]])
    if np.bincount(cell).max() == 1:
        return
    _, place, counts = np.unique(cell, return_index=True, return_counts=True)
    refuse(
        program,
        row[place],
        counts > 1,
        "an action runs once per chunk, microbatch, lane and step, but is there twice",
    )


def _dense_key(columns: list[NDArray[Any]]) -> tuple[NDArray[np.int64], int]:
    """Return one number per entry that tells the tuples apart, and how many numbers there are."""
    key, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low = int(column.min())
        span = int(column.max()) - low + 1
        key, size = key * span + (column - low), size * span
        if size > 16 * len(key) + 1024:  # sparse numbers: count those that occur
            values, key = np.unique(key, return_inverse=True)
            size = len(values)
    return key, size
