"""The quick engine: the meaning of `program/program.py` over arrays, compiled by numba when first used.

Without interference a row is settled as soon as all that it waits for is settled, in any order (`_play`); the order
found serves for more prices of the same program (`_replay`).  Where rows that slow each other met (`meetings`), an event loop
in time carries the work that is left (`compiled_interference`).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from simulator.engine.meetings import may_meet
from simulator.errors import DeadlockError, ProgramError
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.spec import check_runnable, find_deadlock
from simulator.program.trace import Trace

__all__ = ["run_compiled", "run_many", "settled_order"]


def run_compiled(program: Program, prices: Prices) -> Trace:
    """Return start and end [s] of every row.

    Raises:
        ProgramError: an index out of range, or prices that do not fit the program.
        DeadlockError: rows are left that wait for each other; the message names the ring.
    """
    check_runnable(program, prices.occupancy, prices.latency)
    start, end = np.empty(program.size), np.empty(program.size)
    order = np.empty(program.size, np.int32)
    done = _play(  # type: ignore[call-arg]
        *_columns(program), _fixed(prices.occupancy), _fixed(prices.latency), start, end, order
    )
    if done == program.size and prices.interferes and may_meet(program, prices, start, end):
        from simulator.engine.compiled_interference import run_fluid

        done = run_fluid(program, prices, start, end)
    if done < program.size:
        raise DeadlockError(find_deadlock(program))
    start.flags.writeable = end.flags.writeable = False
    return Trace(start=start, end=end, engine="compiled")


def run_many(program: Program, occupancy: NDArray[np.float64], latency: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the makespan [s] for each row of two matrices [samples, items] of prices, without interference.

    Raises:
        ProgramError: matrices of different or wrong shape, or an index out of range.
        DeadlockError: rows are left that wait for each other.
    """
    if occupancy.ndim != 2 or occupancy.shape != latency.shape:
        raise ProgramError(
            f"occupancy and latency are matrices [samples, items] of one shape, but they have {occupancy.shape} and "
            f"{latency.shape}"
        )
    makespans = np.zeros(len(occupancy))
    if program.size == 0 or len(occupancy) == 0:
        return makespans
    check_runnable(program, occupancy, latency)
    columns, start, end = _columns(program), np.empty(program.size), np.empty(program.size)
    order = np.empty(program.size, np.int32)
    done = _play(*columns, _fixed(occupancy[0]), _fixed(latency[0]), start, end, order)  # type: ignore[call-arg]
    if done < program.size:
        raise DeadlockError(find_deadlock(program))
    makespans[0] = end.max()
    for sample in range(1, len(occupancy)):
        prices = _fixed(occupancy[sample]), _fixed(latency[sample])
        makespans[sample] = _replay(*columns, *prices, end, order)  # type: ignore[call-arg]
    return makespans


def settled_order(program: Program, prices: Prices, item: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the rows in an order in which causes come first; it serves for all prices of the program.

    Args:
        program: what happens.
        prices: of some items.
        item: [rows] the item of `prices` that each row runs, in place of the program's own.

    Raises:
        DeadlockError: rows are left that wait for each other.
    """
    columns = (np.ascontiguousarray(item, np.int32), *_columns(program)[1:])
    columns[0].flags.writeable = False
    start, end = np.empty(program.size), np.empty(program.size)
    order = np.empty(program.size, np.int32)
    done = _play(*columns, _fixed(prices.occupancy), _fixed(prices.latency), start, end, order)  # type: ignore[call-arg]
    if done < program.size:
        raise DeadlockError(find_deadlock(program))
    return order


def _fixed(array: NDArray[Any], dtype: Any = np.float64) -> NDArray[Any]:
    """Return a contiguous read-only view, so that numba meets one type only and compiles once."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def _columns(program: Program) -> tuple[Any, ...]:
    return (
        _fixed(program.item, np.int32),
        _fixed(program.stream_offsets, np.int64),
        _fixed(program.streams, np.int32),
        _fixed(program.after_offsets, np.int64),
        _fixed(program.after, np.int32),
        len(program.stream_rank),
    )


@numba.njit(cache=True)
def _play(  # type: ignore[no-untyped-def]
    item, stream_offsets, streams, after_offsets, after, stream_count, occupancy, latency, start, end, order
):
    """Fill start and end of every row and the order in which they were settled; return how many rows can run.

    A row that is first on its streams but waits for another in `after` parks there, in a chain that begins at
    `parked[other]`; when the other is settled, the row is tried again from where it stopped.  No edge is met twice.
    """
    n = len(item)
    following = np.empty(len(streams), np.int32)  # the next row on the same stream
    absent = np.empty(n, np.int32)  # on how many streams a row is not yet first; then how many of `after` are met
    parked = np.empty(n, np.int32)
    first = np.full(stream_count, -1, np.int32)
    for row in range(n - 1, -1, -1):
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            following[entry] = first[streams[entry]]
            first[streams[entry]] = row
        absent[row] = stream_offsets[row + 1] - stream_offsets[row]
        parked[row] = -1
        start[row] = 0.0
        end[row] = -1.0  # not settled
    chain = np.empty(n, np.int32)
    stack = np.empty(n, np.int32)
    top = 0
    for stream in range(stream_count - 1, -1, -1):
        row = first[stream]
        if row >= 0:
            absent[row] -= 1
            if absent[row] == 0:
                stack[top] = row
                top += 1
    done = 0
    while top > 0:
        top -= 1
        row = stack[top]
        ready = start[row]
        cursor = after_offsets[row] + absent[row]
        stop = after_offsets[row + 1]
        while cursor < stop:
            other = after[cursor]
            if end[other] < 0.0:
                break
            seen = end[other] + latency[item[other]]
            if seen > ready:
                ready = seen
            cursor += 1
        start[row] = ready
        if cursor < stop:
            absent[row] = cursor - after_offsets[row]
            chain[row] = parked[after[cursor]]
            parked[after[cursor]] = row
            continue
        ended = ready + occupancy[item[row]]
        end[row] = ended
        order[done] = row
        done += 1
        waiting = parked[row]
        while waiting >= 0:
            stack[top] = waiting
            top += 1
            waiting = chain[waiting]
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            successor = following[entry]
            if successor >= 0:
                if ended > start[successor]:
                    start[successor] = ended
                absent[successor] -= 1
                if absent[successor] == 0:
                    stack[top] = successor
                    top += 1
    return done


@numba.njit(cache=True)
def _replay(  # type: ignore[no-untyped-def]
    item, stream_offsets, streams, after_offsets, after, stream_count, occupancy, latency, end, order
):
    """Settle all rows with other prices, in an order in which causes come first; return the makespan."""
    free = np.zeros(stream_count)
    makespan = 0.0
    for row in order:
        ready = 0.0
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            ready = max(ready, free[streams[entry]])
        for entry in range(after_offsets[row], after_offsets[row + 1]):
            other = after[entry]
            ready = max(ready, end[other] + latency[item[other]])
        ended = ready + occupancy[item[row]]
        end[row] = ended
        makespan = max(makespan, ended)
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            free[streams[entry]] = ended
    return makespan
