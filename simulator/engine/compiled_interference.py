"""The quick engine's event loop for rows that slow each other; compiled only when prices interfere.

Meaning (that of the readable engine): a running row takes `factor` times as long as alone, `factor` depending on the
kinds of work on the other streams of its ranks; it changes only when a row of such a rank starts or ends, and the work
left carries over.  At one instant ends come first, then starts, then the new factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled, part
from simulator.engine.resources import kinds_of_items, longer_beside
from simulator.program.prices import Prices
from simulator.program.program import Program

__all__ = ["flow", "run_fluid"]


def run_fluid(program: Program, prices: Prices, start: NDArray[np.float64], end: NDArray[np.float64]) -> None:
    """Fill start and end [s] of each row of a program that can run to its end (`settled_order`)."""
    mix = np.arange(len(prices.occupancy), dtype=np.int32)
    flow(program, prices.occupancy, prices.latency, mix, prices, start, end)


def flow(
    program: Program,
    occupancy: NDArray[np.float64],
    latency: NDArray[np.float64],
    mix: NDArray[np.int32],
    prices: Prices,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> None:
    """As `run_fluid`, for items with times of their own.

    Args:
        occupancy, latency: [items] seconds.
        mix: [items] the item of `prices` whose shares an item has.
    """
    _flow(
        _fixed(program.item, np.int32),
        _fixed(program.stream_offsets, np.int64),
        _fixed(program.streams, np.int32),
        _fixed(program.after_offsets, np.int64),
        _fixed(program.after, np.int32),
        _fixed(program.stream_rank, np.int32),
        program.ranks,
        _fixed(occupancy, np.float64),
        _fixed(latency, np.float64),
        _fixed(mix, np.int32),
        kinds_of_items(prices),
        longer_beside(prices),
        start,
        end,
    )


def _fixed(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return a contiguous read-only view, so that numba meets one type only and compiles once."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


@part(error_model="numpy")
def _settle(keys: Any, tree: Any, slot: Any) -> None:
    """Play the matches of a slot again, up a tournament tree: node n holds the earlier of nodes 2n and 2n + 1."""
    node = (slot + len(keys)) >> 1
    while node > 0:
        one, other = tree[2 * node], tree[2 * node + 1]
        tree[node] = one if keys[one] <= keys[other] else other
        node >>= 1


@compiled(error_model="numpy")
def _flow(  # type: ignore[no-untyped-def]
    item, stream_offsets, streams, after_offsets, after, stream_rank, rank_count, occupancy, latency, mix, masks, factors,
    start, end,
):  # fmt: skip
    """Fill start and end of every row; return how many rows ran.

    A row that runs, or that only waits for a latency, is first on all its streams: the number of its first stream is
    its `slot`, where its state lies.  So the state of all that is going on fits into the nearest cache.
    """
    n, slots = len(item), len(stream_rank)
    following = np.empty(len(streams), np.int32)  # the next row on the same stream
    absent = np.empty(n, np.int32)  # on how many streams a row is not yet first; then how many of `after` are met
    parked = np.empty(n, np.int32)  # first of a chain of rows that wait for this one in `after`
    first = np.full(slots, -1, np.int32)
    for row in range(n - 1, -1, -1):
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            following[entry] = first[streams[entry]]
            first[streams[entry]] = row
        absent[row] = stream_offsets[row + 1] - stream_offsets[row]
        parked[row] = -1
        start[row] = 0.0
        end[row] = -1.0  # has not ended
    chain = np.empty(n, np.int32)
    leaves = 1
    while leaves < slots:
        leaves *= 2
    keys = np.full(leaves, np.inf)  # per slot: not after its row ends, or may start; the tree finds the earliest
    tree = np.zeros(2 * leaves, np.int32)
    for node in range(2 * leaves - 1, 0, -1):
        tree[node] = node - leaves if node >= leaves else tree[2 * node]
    row_of, mask_of, runs = np.zeros(slots, np.int32), np.zeros(slots, np.int32), np.zeros(slots, np.bool_)
    left, since, factor, due = np.zeros(slots), np.zeros(slots), np.zeros(slots), np.zeros(leaves)
    room, widest = np.zeros(rank_count + 1, np.int32), 0
    for stream in range(slots):
        room[stream_rank[stream]] += 1
        widest = max(widest, room[stream_rank[stream]])
    # Per rank the slots that run there.
    on_rank, crowd = np.empty((rank_count, widest), np.int32), np.zeros(rank_count, np.int32)
    once, twice = np.zeros(rank_count, np.int32), np.zeros(rank_count, np.int32)  # bits of kinds at work there
    dirty, is_dirty, dirty_count = np.empty(rank_count, np.int32), np.zeros(rank_count, np.bool_), 0
    fresh, fresh_count = np.empty(slots, np.int32), 0  # slots that started at this instant
    tried, tries = np.empty(slots, np.int32), 0  # rows that are first on all their streams, to be looked at now
    begun, begins = np.empty(slots, np.int32), 0  # rows that start now
    ended, ends = np.empty(slots, np.int32), 0  # rows that end now
    now, taken = 0.0, -1
    for stream in range(slots):
        row = first[stream]
        if row >= 0:
            absent[row] -= 1
            if absent[row] == 0:
                tried[tries] = row
                tries += 1
    while True:
        while ends > 0 or begins > 0 or tries > 0:
            if ends > 0:  # 1. Ends: let go of the streams and of those that wait.
                ends -= 1
                row = ended[ends]
                slot = streams[stream_offsets[row]]
                end[row] = now
                waiting = parked[row]
                while waiting >= 0:
                    tried[tries] = waiting
                    tries += 1
                    waiting = chain[waiting]
                for entry in range(stream_offsets[row], stream_offsets[row + 1]):
                    successor = following[entry]
                    if successor >= 0:
                        absent[successor] -= 1
                        if absent[successor] == 0:
                            tried[tries] = successor
                            tries += 1
                    if runs[slot]:
                        rank = stream_rank[streams[entry]]
                        spot = 0
                        while spot < crowd[rank] and on_rank[rank, spot] != slot:
                            spot += 1
                        if spot < crowd[rank]:  # else: a second stream of one rank
                            crowd[rank] -= 1
                            on_rank[rank, spot] = on_rank[rank, crowd[rank]]
                            if not is_dirty[rank]:
                                is_dirty[rank] = True
                                dirty[dirty_count] = rank
                                dirty_count += 1
                runs[slot] = False
            elif tries > 0:  # 2. Can this row start: now, after a latency, or after a row that has not ended?
                tries -= 1
                row = tried[tries]
                cursor, stop = after_offsets[row] + absent[row], after_offsets[row + 1]
                while cursor < stop:
                    other = after[cursor]
                    if end[other] < 0.0:
                        break
                    seen = end[other] + latency[item[other]]
                    if seen > start[row]:
                        start[row] = seen
                    cursor += 1
                if cursor < stop:
                    absent[row] = cursor - after_offsets[row]
                    chain[row] = parked[after[cursor]]
                    parked[after[cursor]] = row
                elif start[row] > now:
                    slot = streams[stream_offsets[row]]
                    row_of[slot], due[slot] = row, start[row]
                    keys[slot] = due[slot]
                    _settle(keys, tree, np.int64(slot))
                else:
                    begun[begins] = row
                    begins += 1
            else:  # 3. Starts.  A row without occupancy ends at once and disturbs nobody.
                begins -= 1
                row = begun[begins]
                start[row] = now
                if occupancy[item[row]] <= 0.0:
                    ended[ends] = row
                    ends += 1
                    continue
                slot = streams[stream_offsets[row]]
                row_of[slot], mask_of[slot] = row, masks[mix[item[row]]]
                runs[slot] = True
                left[slot], factor[slot] = occupancy[item[row]], 0.0
                fresh[fresh_count] = slot
                fresh_count += 1
                for entry in range(stream_offsets[row], stream_offsets[row + 1]):
                    rank = stream_rank[streams[entry]]
                    known = False
                    for spot in range(crowd[rank]):
                        known = known or on_rank[rank, spot] == slot
                    if not known:
                        on_rank[rank, crowd[rank]] = slot
                        crowd[rank] += 1
                        if not is_dirty[rank]:
                            is_dirty[rank] = True
                            dirty[dirty_count] = rank
                            dirty_count += 1
        # 4. New factors: of all rows on the ranks where the kinds at work changed, and of the rows that started.
        changed = 0
        for place_of_dirty in range(dirty_count):
            rank = dirty[place_of_dirty]
            is_dirty[rank] = False
            one, two = 0, 0
            for spot in range(crowd[rank]):
                mask = mask_of[on_rank[rank, spot]]
                two |= one & mask
                one |= mask
            if one != once[rank] or two != twice[rank]:
                once[rank], twice[rank] = one, two
                dirty[changed] = rank
                changed += 1
        for group in range(changed + 1):
            many = fresh_count if group == changed else crowd[dirty[group]]
            for spot in range(many):
                slot = fresh[spot] if group == changed else on_rank[dirty[group], spot]
                row = row_of[slot]
                mask, worst, its = mask_of[slot], 0.0, mix[item[row]]
                for entry in range(stream_offsets[row], stream_offsets[row + 1]):
                    rank = stream_rank[streams[entry]]
                    longer = factors[its, (once[rank] & ~mask) | (twice[rank] & mask)]
                    if longer > worst:
                        worst = longer
                if worst != factor[slot]:
                    if factor[slot] > 0.0:
                        left[slot] -= (now - since[slot]) / factor[slot]
                        if left[slot] < 0.0:
                            left[slot] = 0.0
                    since[slot], factor[slot] = now, worst
                    due[slot] = now + left[slot] * worst
                    if due[slot] < keys[slot]:  # a later end is found out when the old one comes
                        keys[slot] = due[slot]
                        _settle(keys, tree, np.int64(slot))
        dirty_count, fresh_count = 0, 0
        # 5. The next row that ends or may start; several at one instant come one by one, with no time between.
        if taken >= 0 and keys[taken] == np.inf:
            _settle(keys, tree, taken)
        taken = tree[1]
        while due[taken] > keys[taken]:
            keys[taken] = due[taken]
            _settle(keys, tree, taken)
            taken = tree[1]
        if keys[taken] == np.inf:
            return
        now = keys[taken]
        keys[taken] = np.inf
        if runs[taken]:
            ended[0], ends = row_of[taken], 1
        else:
            begun[0], begins = row_of[taken], 1
