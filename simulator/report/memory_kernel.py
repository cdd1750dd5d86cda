"""The loop of the memory walk; its meaning is told in `memory.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.compiled import compiled, part, read_only

__all__ = ["walk_memory"]

Array = Any


@part()
def _rows_by_stream(
    rank: Array, stream_rank: Array, offsets: Array, streams: Array, starts: Array, ends: Array, marks: Array
) -> tuple[Array, Array, int]:
    """Rows with an effect, by the stream of their own rank; (rows, first entry of each stream, a bad row or -1)."""
    size = len(rank)
    lane = np.full(size, -1, np.int32)
    first = np.zeros(len(stream_rank) + 1, np.int64)
    for row in range(size):
        if starts[row] < 0 and ends[row] < 0 and marks[row] < 0:
            continue
        for entry in range(offsets[row], offsets[row + 1]):
            if stream_rank[streams[entry]] == rank[row]:
                lane[row] = streams[entry]
                break
        if lane[row] < 0:
            return np.empty(0, np.int32), first, row
        first[lane[row] + 1] += 1
    for stream in range(len(stream_rank)):
        first[stream + 1] += first[stream]
    rows = np.empty(first[len(stream_rank)], np.int32)
    place = np.empty(len(stream_rank), np.int64)
    for stream in range(len(stream_rank)):
        place[stream] = first[stream]
    for row in range(size):
        if lane[row] >= 0:
            rows[place[lane[row]]] = row
            place[lane[row]] += 1
    return rows, first, -1


@part()
def _time_of_peak(
    lanes: Array,
    rows: Array,
    first: Array,
    start: Array,
    end: Array,
    starts: Array,
    ends: Array,
    marks: Array,
    totals: Array,
    level: float,
    low: float,
    high: float,
) -> float:
    """First instant in [low, high] at which the level of one rank is highest: a merge of the edges of its streams.

    The edges of a stream, in order, are start and end of its first row, start and end of its second, ...
    """
    position, last = np.empty(len(lanes), np.int64), np.empty(len(lanes), np.int64)
    head = np.empty(len(lanes), np.float64)
    for k in range(len(lanes)):
        position[k], last[k] = 2 * first[lanes[k]], 2 * first[lanes[k] + 1]
        head[k] = start[rows[position[k] // 2]]
    now, best, best_time = 0.0, -1.0, low
    while True:
        upcoming = np.inf
        for k in range(len(lanes)):
            upcoming = min(upcoming, head[k])
        if upcoming > low and now <= high and level > best * (1.0 + 2.0**-40):
            best, best_time = level, max(now, low)
        if upcoming == np.inf:
            return best_time
        now = upcoming
        for k in range(len(lanes)):
            while head[k] <= now:
                row = rows[position[k] // 2]
                if position[k] % 2 == 0:
                    if starts[row] >= 0:
                        level += totals[starts[row]]
                    if marks[row] >= 0:
                        level += totals[marks[row]]
                else:
                    if ends[row] >= 0:
                        level -= totals[ends[row]]
                    if marks[row] >= 0:
                        level -= totals[marks[row]]
                position[k] += 1
                if position[k] == last[k]:
                    head[k] = np.inf
                else:
                    row = rows[position[k] // 2]
                    head[k] = start[row] if position[k] % 2 == 0 else end[row]


@part()
def _count_live(
    rows: Array, now: float, start: Array, end: Array, starts: Array, ends: Array, marks: Array, net: Array
) -> None:
    """Add to `net` how often each effect stands at `now` because of these rows (in time order)."""
    for row in rows:
        if start[row] > now:
            return
        if starts[row] >= 0:
            net[starts[row]] += 1
        if end[row] > now:
            if marks[row] >= 0:
                net[marks[row]] += 1
        elif ends[row] >= 0:
            net[ends[row]] -= 1


def _types() -> Any:
    """One version, whether an array happens to be writeable or not."""
    from numba import float64, int64

    ints, longs, floats = read_only("int32", "int64", "float64")
    return int64(
        *(ints, ints, longs, ints, floats, floats, ints, ints, ints, floats, floats),
        *(float64, float64, float64[::1], int64[:, ::1]),
    )


@compiled(_types)
def walk_memory(
    rank: Array,
    stream_rank: Array,
    offsets: Array,
    streams: Array,
    start: Array,
    end: Array,
    starts: Array,
    ends: Array,
    marks: Array,
    totals: Array,
    levels: Array,
    low: float,
    high: float,
    time: Array,
    net: Array,
) -> int:
    """Fill time[ranks] of the peaks in [low, high] and net[ranks, effects], how often each effect stands there.

    Args:
        totals: [effects] bytes; levels: [ranks] bytes that stand before the first row.

    Returns:
        A row that holds no stream of its own rank, or -1.
    """
    rows, first, bad = _rows_by_stream(rank, stream_rank, offsets, streams, starts, ends, marks)
    if bad >= 0:
        return bad
    lanes = np.empty(len(stream_rank), np.int64)
    for r in range(len(time)):
        held = 0
        for stream in range(len(stream_rank)):
            if stream_rank[stream] == r and first[stream + 1] > first[stream]:
                lanes[held] = stream
                held += 1
        mine = lanes[:held]
        time[r] = _time_of_peak(mine, rows, first, start, end, starts, ends, marks, totals, levels[r], low, high)
        for k in range(held):
            begin, stop = first[lanes[k]], first[lanes[k] + 1]
            _count_live(rows[begin:stop], time[r], start, end, starts, ends, marks, net[r])
    return -1
