"""The critical path of a trace: from the row that ends last back to time 0, through the predecessor that binds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.trace import Trace

__all__ = ["critical_path"]


def critical_path(program: Program, prices: Prices, trace: Trace) -> NDArray[np.int32]:
    """Return the rows of the critical path in order of time; the last one ends at the makespan.

    Each row but the first is preceded by the one that let it start: the row before it on one of its streams, or a row
    of its `after` list whose latency passed last.  The path begins at a row that nothing held back after time 0.

    >>> from simulator.engine import run
    >>> from simulator.program.builder import ProgramBuilder, plain_segment
    >>> build = ProgramBuilder()
    >>> stream = build.add_stream(build.add_rank())
    >>> layer = build.add_item(plain_segment("layer"))
    >>> rows = [build.add_row(layer, stream) for _ in range(3)]
    >>> program, prices = build.build(), Prices.plain(np.ones(1), np.zeros(1))
    >>> critical_path(program, prices, run(program, prices)).tolist()
    [0, 1, 2]
    """
    if program.size == 0:
        return np.zeros(0, np.int32)
    path: NDArray[np.int32] = _walk(
        int(np.argmax(trace.end)),
        np.ascontiguousarray(program.item, np.int32),
        np.ascontiguousarray(program.stream_offsets, np.int64),
        np.ascontiguousarray(program.streams, np.int32),
        np.ascontiguousarray(program.after_offsets, np.int64),
        np.ascontiguousarray(program.after, np.int32),
        np.ascontiguousarray(prices.latency, np.float64),
        np.ascontiguousarray(trace.end, np.float64),
        len(program.stream_rank),
    )
    return path


@compiled()
def _walk(  # type: ignore[no-untyped-def]
    last, item, stream_offsets, streams, after_offsets, after, latency, end, stream_count
):
    previous = np.empty(len(streams), np.int32)
    tail = np.full(stream_count, -1, np.int32)
    for row in range(len(item)):
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            previous[entry] = tail[streams[entry]]
            tail[streams[entry]] = row
    path = np.empty(len(item), np.int32)
    row, length = last, 0
    while row >= 0 and length < len(item):
        path[length] = row
        length += 1
        binding, ready = -1, 0.0
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            other = previous[entry]
            if other >= 0 and (end[other] > ready or binding < 0):
                binding, ready = other, end[other]
        for entry in range(after_offsets[row], after_offsets[row + 1]):
            other = after[entry]
            seen = end[other] + latency[item[other]]
            if seen > ready or binding < 0:
                binding, ready = other, seen
        row = binding if ready > 0.0 else -1
    return path[:length][::-1].copy()
