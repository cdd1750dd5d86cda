"""The quick engine: the meaning of `program/program.py` over arrays, compiled by numba when first used.

A row is settled as soon as all that it waits for is settled; the order in which this happens (`_play`) serves for all prices of the
same rows (`_replay`).  Where collectives stretch the compute beside them and are not stretched themselves, a compute row is settled
once it is known which of them run beside it (`_stretch`).  Where more happens, an event loop in time carries the work that is
left (`compiled_interference`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.engine.meetings import items_that_stretch
from simulator.engine.resources import longer_beside
from simulator.errors import DeadlockError
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.spec import check_runnable, find_deadlock
from simulator.program.trace import Trace

__all__ = ["run_compiled", "settled_order"]


def run_compiled(program: Program, prices: Prices) -> Trace:
    """Return start and end [s] of every row.

    Raises:
        ProgramError: an index out of range, or prices that do not fit the program.
        DeadlockError: rows are left that wait for each other; the message names the ring.
    """
    check_runnable(program, prices.occupancy, prices.latency)
    order, columns = settled_order(program), _columns(program)
    times = _fixed(prices.occupancy), _fixed(prices.latency)
    start, end = np.empty(program.size), np.empty(program.size)
    if not prices.interferes:
        _replay(*columns, *times, start, end, order)
    elif not _stretched(program, prices, columns, times, start, end, order):
        from simulator.engine.compiled_interference import run_fluid

        run_fluid(program, prices, start, end)
    start.flags.writeable = end.flags.writeable = False
    return Trace(start=start, end=end, engine="compiled")


def _stretched(
    program: Program, prices: Prices, columns: Any, times: Any, start: Any, end: Any, order: NDArray[np.int32]
) -> bool:
    """Fill start and end where links stretch compute and nothing else is stretched; return whether that is so."""
    found = items_that_stretch(program, prices)
    if found is None:
        return False
    own = program.stream_rank, program.kind, *found, longer_beside(prices)
    return bool(_stretch(*columns, *times, *own, start, end, order))


def settled_order(program: Program) -> NDArray[np.int32]:
    """Return the rows in an order in which causes come first; it serves for all prices of all programs with these rows.

    Raises:
        DeadlockError: rows are left that wait for each other.
    """
    order: NDArray[np.int32] | None = program.rows.once(("settled order",), lambda: _found_order(program))
    if order is None:
        raise DeadlockError(find_deadlock(program))
    return order


def _found_order(program: Program) -> NDArray[np.int32] | None:
    order = np.empty(program.size, np.int32)
    _, *columns = _columns(program)
    done = _play(*columns, _fixed(program.kind, np.int8), order)
    return order if done == program.size else None


def _fixed(array: NDArray[Any], dtype: Any = np.float64) -> NDArray[Any]:
    """Return a contiguous read-only view, so that numba meets one type only and compiles once."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def _columns(program: Program) -> tuple[Any, ...]:
    found: tuple[Any, ...] = program.rows.once(
        ("columns of the engine",),
        lambda: (
            _fixed(program.item, np.int32),
            _fixed(program.stream_offsets, np.int64),
            _fixed(program.streams, np.int32),
            _fixed(program.after_offsets, np.int64),
            _fixed(program.after, np.int32),
            len(program.stream_rank),
        ),
    )
    return found


@compiled()
def _play(stream_offsets, streams, after_offsets, after, stream_count, kind, order):  # type: ignore[no-untyped-def]
    """Fill the order in which rows can be settled, each compute row after all links that can be; return how many rows can run.

    A row that is first on its streams but waits for another in `after` parks there, in a chain that begins at
    `parked[other]`; when the other is settled, the row is tried again from where it stopped.  No edge is met twice.
    """
    n = len(order)
    following = np.empty(len(streams), np.int32)  # the next row on the same stream
    absent = np.empty(n, np.int32)  # on how many streams a row is not yet first; then how many of `after` are met
    parked = np.full(n, -1, np.int32)
    settled = np.zeros(n, np.bool_)
    first = np.full(stream_count, -1, np.int32)
    for row in range(n - 1, -1, -1):
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            following[entry] = first[streams[entry]]
            first[streams[entry]] = row
        absent[row] = stream_offsets[row + 1] - stream_offsets[row]
    chain = np.empty(n, np.int32)
    stack = np.empty(n, np.int32)  # compute rows from its bottom, links from its end
    top, links = 0, n
    for stream in range(stream_count - 1, -1, -1):
        row = first[stream]
        if row >= 0:
            absent[row] -= 1
            if absent[row] == 0:
                if kind[row] == 0:
                    stack[top] = row
                    top += 1
                else:
                    links -= 1
                    stack[links] = row
    done = 0
    while top > 0 or links < n:
        if links < n:
            row = stack[links]
            links += 1
        else:
            top -= 1
            row = stack[top]
        cursor = after_offsets[row] + absent[row]
        stop = after_offsets[row + 1]
        while cursor < stop and settled[after[cursor]]:
            cursor += 1
        if cursor < stop:
            absent[row] = cursor - after_offsets[row]
            chain[row] = parked[after[cursor]]
            parked[after[cursor]] = row
            continue
        settled[row] = True
        order[done] = row
        done += 1
        waiting = parked[row]
        while waiting >= 0:
            if kind[waiting] == 0:
                stack[top] = waiting
                top += 1
            else:
                links -= 1
                stack[links] = waiting
            waiting = chain[waiting]
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            successor = following[entry]
            if successor >= 0:
                absent[successor] -= 1
                if absent[successor] == 0:
                    if kind[successor] == 0:
                        stack[top] = successor
                        top += 1
                    else:
                        links -= 1
                        stack[links] = successor
    return done


@compiled()
def _replay(  # type: ignore[no-untyped-def]
    item, stream_offsets, streams, after_offsets, after, stream_count, occupancy, latency, start, end, order
):
    """Fill start and end of all rows, in an order in which causes come first; return the makespan."""
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
        start[row] = ready
        end[row] = ended
        makespan = max(makespan, ended)
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            free[streams[entry]] = ended
    return makespan


@compiled(error_model="numpy")
def _stretch(  # type: ignore[no-untyped-def]
    item, stream_offsets, streams, after_offsets, after, stream_count, occupancy, latency, stream_rank, kind, masks, stretches, longer,
    start, end, order,
):  # fmt: skip
    """As `_replay`, where links that stretch slow the compute on their ranks down; False if the order does not serve for that.

    It serves if no such link starts while a compute row that was settled before it still runs.
    """
    free = np.zeros(stream_count)
    ranks = 0
    for stream in range(stream_count):
        ranks = max(ranks, stream_rank[stream] + 1)
    busy = np.zeros(ranks)  # until when the compute rows run that are settled
    # Links that stretch and are not yet over: a chain for each rank, whose nodes are entries of `streams`.
    chain, node, link_of = (
        np.full(ranks, -1, np.int32),
        np.empty(len(streams), np.int32),
        np.empty(len(streams), np.int32),
    )
    for row in order:
        ready = 0.0
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            ready = max(ready, free[streams[entry]])
        for entry in range(after_offsets[row], after_offsets[row + 1]):
            other = after[entry]
            ready = max(ready, end[other] + latency[item[other]])
        its = item[row]
        left, ended = occupancy[its], ready + occupancy[its]
        start[row] = ready
        if kind[row] == 0:
            rank = stream_rank[streams[stream_offsets[row]]]
            last, spot = -1, chain[rank]
            while spot >= 0:
                if end[link_of[spot]] > ready:
                    last = spot
                elif last < 0:
                    chain[rank] = node[spot]
                else:
                    node[last] = node[spot]
                spot = node[spot]
            if last >= 0 and left > 0.0:
                now, since, factor = ready, ready, 0.0
                while True:  # from change to change of what runs beside it
                    kinds, change = 0, np.inf
                    spot = chain[rank]
                    while spot >= 0:
                        link = link_of[spot]
                        if start[link] > now:
                            change = min(change, start[link])
                        elif end[link] > now:
                            kinds |= masks[item[link]]
                            change = min(change, end[link])
                        spot = node[spot]
                    slower = longer[its, kinds]
                    if slower != factor:
                        if factor > 0.0:
                            left = max(left - (now - since) / factor, 0.0)
                        since, factor = now, slower
                        ended = now + left * slower
                    if ended <= change:
                        break
                    now = change
            busy[rank] = ended
        elif stretches[its] and left > 0.0:
            for entry in range(stream_offsets[row], stream_offsets[row + 1]):
                rank = stream_rank[streams[entry]]
                if ready < busy[rank]:
                    return False
                node[entry], link_of[entry] = chain[rank], row
                chain[rank] = entry
        end[row] = ended
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            free[streams[entry]] = ended
    return True
