"""The loop that gives every instant of a rank to an account; its meaning is told in `breakdown.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.compiled import compiled, part, read_only

__all__ = ["account_instants"]

Array = Any


@part(inline="always")
def _waits_for(
    row: int,
    previous: Array,
    offsets: Array,
    after_offsets: Array,
    after: Array,
    end: Array,
    free: Array,
) -> int:
    """The row that let this one start: the latest of `after` (end + latency) and of the rows before it; -1 none."""
    found, latest = -1, -np.inf
    for entry in range(after_offsets[row], after_offsets[row + 1]):
        if free[after[entry]] > latest:
            found, latest = after[entry], free[after[entry]]
    for entry in range(offsets[row], offsets[row + 1]):
        before = previous[entry]
        if before >= 0 and end[before] > latest:
            found, latest = before, end[before]
    return found


@part()
def _overlap(low: float, high: float, window: tuple[float, float]) -> float:
    """Length of [low, high] within the window."""
    return max(0.0, min(high, window[1]) - max(low, window[0]))


@part(inline="always")
def _explain_gap(
    low: float,
    high: float,
    cause: int,
    window: tuple[float, float],
    out: Array,
    bubble: int,
    account: Array,
    previous: Array,
    offsets: Array,
    after_offsets: Array,
    after: Array,
    start: Array,
    end: Array,
    free: Array,
) -> None:
    """Share out the idle time [low, high] of a rank that ended because row `cause` did.

    Walks back: the part in which the cause ran or was in flight goes to its account; if another link kept it from
    starting, that one is the cause of the time before; where a compute row did, the rest is bubble.
    """
    while high > low and cause >= 0 and account[cause] >= 0:
        top = max(low, min(high, free[cause]))
        out[bubble] += _overlap(top, high, window)
        bottom = min(top, max(low, start[cause]))
        out[account[cause]] += _overlap(bottom, top, window)
        high = bottom
        cause = _waits_for(cause, previous, offsets, after_offsets, after, end, free)
    if high > low:
        out[bubble] += _overlap(low, high, window)


@part()
def _explain_tail(
    low: float,
    links: Array,
    account: Array,
    start: Array,
    end: Array,
    window: tuple[float, float],
    out: Array,
    bubble: int,
) -> None:
    """Share out [low, end of window]: each instant to the link running then which ends last; else bubble."""
    high = window[1]
    for i in range(1, len(links)):  # few links: insertion sort, the one that ends last first
        row, j = links[i], i - 1
        while j >= 0 and end[links[j]] < end[row]:
            links[j + 1] = links[j]
            j -= 1
        links[j + 1] = row
    for row in links:
        if end[row] < high:
            out[bubble] += _overlap(max(low, end[row]), high, window)
            high = max(low, end[row])
        bottom = max(low, min(high, start[row]))
        out[account[row]] += _overlap(bottom, high, window)
        high = bottom
    if high > low:
        out[bubble] += _overlap(low, high, window)


@part()
def _chain_streams(offsets: Array, streams: Array, n_streams: int) -> Array:
    """Per entry of `streams`: the row before it on that stream, -1 for the first."""
    previous = np.empty(len(streams), np.int32)
    last = np.full(n_streams, -1, np.int32)
    for row in range(len(offsets) - 1):
        for entry in range(offsets[row], offsets[row + 1]):
            previous[entry] = last[streams[entry]]
            last[streams[entry]] = row
    return previous


@part()
def _links_after(
    until: Array, account: Array, offsets: Array, streams: Array, stream_rank: Array, end: Array
) -> tuple[Array, Array]:
    """Rows of links that end after `until` of a rank they involve: rank r's are entries first[r]:first[r + 1]."""
    first = np.zeros(len(until) + 1, np.int64)
    found = np.empty(0, np.int32)
    place = np.zeros(len(until), np.int64)
    for counting in (True, False):
        for row in range(len(account)):
            if account[row] < 0:
                continue
            for entry in range(offsets[row], offsets[row + 1]):
                rank = stream_rank[streams[entry]]
                if end[row] > until[rank]:
                    if counting:
                        first[rank + 1] += 1
                    else:
                        found[place[rank]] = row
                        place[rank] += 1
        if counting:
            for rank in range(len(until)):
                first[rank + 1] += first[rank]
                place[rank] = first[rank]
            found = np.empty(first[len(until)], np.int32)
    return first, found


def _types() -> Any:
    """One version, whether an array happens to be writeable or not."""
    from numba import float64, int64, types, void

    ints, longs, floats = read_only("int32", "int64", "float64")
    table, pair = types.Array(float64, 2, "C", readonly=True), types.UniTuple(float64, 2)  # type: ignore[no-untyped-call]
    return void(
        *(ints, longs, ints, ints, ints, longs, ints, floats, floats, floats, table, ints),
        *(pair, int64, float64[:, ::1]),
    )


@compiled(_types)
def account_instants(
    item: Array,
    offsets: Array,
    streams: Array,
    stream_rank: Array,
    compute_stream: Array,
    after_offsets: Array,
    after: Array,
    start: Array,
    end: Array,
    latency: Array,
    fraction: Array,
    link_account: Array,
    window: tuple[float, float],
    bubble: int,
    out: Array,
) -> None:
    """Fill out[ranks, accounts] with seconds of the window; `link_account` is -1 for segments: `fraction` splits."""
    previous = _chain_streams(offsets, streams, len(stream_rank))
    account = link_account[item]
    free = end + latency[item]
    until = np.zeros(len(out))
    for row in range(len(item)):
        for entry in range(offsets[row], offsets[row + 1]):
            rank = stream_rank[streams[entry]]
            if compute_stream[rank] != streams[entry]:
                continue
            if start[row] > until[rank]:
                cause = _waits_for(row, previous, offsets, after_offsets, after, end, free)
                _explain_gap(
                    until[rank], start[row], cause, window, out[rank], bubble,
                    account, previous, offsets, after_offsets, after, start, end, free,
                )  # fmt: skip
            seconds = _overlap(start[row], end[row], window)
            if account[row] >= 0:
                out[rank, account[row]] += seconds
            else:
                for a in range(fraction.shape[1]):
                    out[rank, a] += seconds * fraction[item[row], a]
            until[rank] = end[row]
    first, links = _links_after(until, account, offsets, streams, stream_rank, end)
    for rank in range(len(out)):
        own = links[first[rank] : first[rank + 1]]
        _explain_tail(until[rank], own, account, start, end, window, out[rank], bubble)
