"""Do rows that slow each other ever run side by side?  Where they never meet, the run without interference is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.program.prices import Prices
from simulator.program.program import Program

__all__ = ["links_that_slow", "may_meet"]


def may_meet(program: Program, prices: Prices, start: NDArray[np.float64], end: NDArray[np.float64]) -> bool:
    """Return whether interference can change these times [s], found without it.

    If no two rows that slow each other overlap on a rank, nothing was ever slowed, so the times stand.  In doubt the answer is
    yes: where several compute streams share a rank, or links slow links.
    """
    links = links_that_slow(program, prices)
    if links is None:
        return True
    chosen = links[end[links] > start[links]]
    return len(chosen) > 0 and _overlap(program, chosen, start, end)


def links_that_slow(program: Program, prices: Prices) -> NDArray[np.int64] | None:
    """Return the rows of links that slow compute or are slowed by it; None in doubt: several compute streams share a rank, or
    links slow links."""
    used: NDArray[np.bool_] = np.asarray(prices.share > 0.0)
    slowed: NDArray[np.bool_] = np.asarray(prices.slowdown > 1.0)
    if not program.rows.once(("one compute stream per rank",), lambda: _one_compute_stream_per_rank(program)):
        return None
    computing, linking = program.rows.once(("kinds of items", len(used)), lambda: _kinds(program, len(used)))
    on_compute = np.asarray(used[computing].any(axis=0))
    links = np.asarray(used[linking].any(axis=0))
    if (slowed & np.outer(links, links)).any():
        return None
    # items of links that slow compute, or are slowed by it
    worked = used.astype(np.int8)
    slows: NDArray[np.int8] = worked @ (slowed & on_compute[:, None]).T.astype(np.int8)
    is_slowed: NDArray[np.int8] = worked @ (slowed & on_compute[None, :]).astype(np.int8)
    acts = np.asarray(((slows > 0) | (is_slowed > 0)).any(axis=1))
    some = program.rows.links
    return some[acts[program.item[some]]]


def _kinds(program: Program, items: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[items] whether an item runs on compute streams, and whether it runs on others."""
    rows = program.rows
    return _occurs(program.item[rows.computes], items), _occurs(program.item[rows.links], items)


def _occurs(numbers: NDArray[np.int32], count: int) -> NDArray[np.bool_]:
    """[count] whether each number occurs: quicker than sorting them."""
    out = np.zeros(count, bool)
    out[numbers] = True
    return out


def _one_compute_stream_per_rank(program: Program) -> bool:
    rows = program.rows.computes
    if (np.diff(program.stream_offsets)[rows] != 1).any():
        return False
    streams = program.streams[program.stream_offsets[rows]]
    ranks = program.stream_rank[_occurs(streams, len(program.stream_rank))]
    return len(np.unique(ranks)) == len(ranks)


def _overlap(program: Program, chosen: NDArray[np.int64], start: NDArray[np.float64], end: NDArray[np.float64]) -> bool:
    """Whether a chosen row runs while a compute row runs on one of its ranks."""
    from simulator.engine import meetings_kernel

    rows, first = program.rows.once(("compute rows by rank", program.ranks), lambda: _by_rank(program))
    overlaps: Any = meetings_kernel.overlaps
    return bool(
        overlaps(
            np.ascontiguousarray(chosen, np.int64),
            np.ascontiguousarray(program.stream_offsets, np.int64),
            np.ascontiguousarray(program.streams, np.int32),
            np.ascontiguousarray(program.stream_rank, np.int32),
            rows,
            first,
            start,
            end,
        )
    )


def _by_rank(program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The compute rows rank by rank, and where each rank's begin."""
    rows = program.rows.computes
    rank = program.stream_rank[program.streams[program.stream_offsets[rows]]]
    by_rank = np.argsort(rank.astype(np.uint16) if program.ranks < 2**16 else rank, kind="stable")
    counts = np.bincount(rank, minlength=program.ranks)
    return rows[by_rank], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
