"""Do rows that slow each other ever run side by side?  Where they never meet, the run without interference is exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.program.prices import Prices
from simulator.program.program import COMPUTE, Program

__all__ = ["links_that_slow", "may_meet"]


def may_meet(program: Program, prices: Prices, start: NDArray[np.float64], end: NDArray[np.float64]) -> bool:
    """Return whether interference can change these times [s], found without it.

    If no two rows that slow each other overlap on a rank, nothing was ever slowed, so the times stand.  In doubt the answer is
    yes: where several compute streams share a rank, or links slow links.
    """
    rows = np.flatnonzero(program.kind == COMPUTE)
    links = links_that_slow(program, prices)
    if links is None:
        return True
    chosen = links[end[links] > start[links]]
    return len(chosen) > 0 and _overlap(program, rows, chosen, start, end)


def links_that_slow(program: Program, prices: Prices) -> NDArray[np.int64] | None:
    """Return the rows of links that slow compute or are slowed by it; None in doubt: several compute streams share a rank, or
    links slow links."""
    used: NDArray[np.bool_] = np.asarray(prices.share > 0.0)
    slowed: NDArray[np.bool_] = np.asarray(prices.slowdown > 1.0)
    computes = program.kind == COMPUTE
    rows = np.flatnonzero(computes)
    if not _one_compute_stream_per_rank(program, rows):
        return None
    on_compute = np.asarray(used[_occurs(program.item[rows], len(used))].any(axis=0))
    links = np.asarray(used[_occurs(program.item[~computes], len(used))].any(axis=0))
    if (slowed & np.outer(links, links)).any():
        return None
    # items of links that slow compute, or are slowed by it
    worked = used.astype(np.int8)
    slows: NDArray[np.int8] = worked @ (slowed & on_compute[:, None]).T.astype(np.int8)
    is_slowed: NDArray[np.int8] = worked @ (slowed & on_compute[None, :]).astype(np.int8)
    acts = np.asarray(((slows > 0) | (is_slowed > 0)).any(axis=1))
    return np.flatnonzero(~computes & acts[program.item])


def _occurs(numbers: NDArray[np.int32], count: int) -> NDArray[np.bool_]:
    """[count] whether each number occurs: quicker than sorting them."""
    out = np.zeros(count, bool)
    out[numbers] = True
    return out


def _one_compute_stream_per_rank(program: Program, rows: NDArray[np.int64]) -> bool:
    if (np.diff(program.stream_offsets)[rows] != 1).any():
        return False
    streams = program.streams[program.stream_offsets[rows]]
    ranks = program.stream_rank[_occurs(streams, len(program.stream_rank))]
    return len(np.unique(ranks)) == len(ranks)


def _overlap(
    program: Program,
    rows: NDArray[np.int64],
    chosen: NDArray[np.int64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> bool:
    """Whether a chosen row runs while a compute row runs on one of its ranks.

    Compute rows of a rank end in the order of their numbers, so one search finds the first that ends after a given time.
    """
    rank = program.stream_rank[program.streams[program.stream_offsets[rows]]]
    by_rank = np.argsort(rank.astype(np.uint16) if program.ranks < 2**16 else rank, kind="stable")
    rows, rank = rows[by_rank], rank[by_rank].astype(np.float64)
    span = 2.0 * float(end.max(initial=0.0)) + 1.0
    ends = rank * span + end[rows]
    width = np.diff(program.stream_offsets)[chosen]
    link = np.repeat(chosen, width)
    first = np.repeat(program.stream_offsets[chosen], width)
    inside = np.arange(len(link)) - np.repeat(np.cumsum(width) - width, width)
    at = program.stream_rank[program.streams[first + inside]].astype(np.float64)
    place = np.searchsorted(ends, at * span + start[link], side="right")
    known = place < len(rows)
    place, link, at = place[known], link[known], at[known]
    return bool(((rank[place] == at) & (start[rows[place]] < end[link])).any())
