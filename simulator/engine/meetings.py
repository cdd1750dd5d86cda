"""Which rows can slow others, and be slowed by them: links beside the compute of their ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.engine.resources import kinds_of_items, slowed, slows
from simulator.program.prices import Prices
from simulator.program.program import Program

__all__ = ["items_that_stretch", "links_that_slow"]


def items_that_stretch(program: Program, prices: Prices) -> tuple[NDArray[np.int32], NDArray[np.bool_]] | None:
    """Return [items] the bits of the kinds that each uses, and which links stretch the compute beside them, where nothing else is ever
    stretched; None where more can happen: several compute streams share a rank, or links are slowed, too."""
    kinds = _kinds_on_streams(program, prices)
    if kinds is None:
        return None
    used, computes, links = kinds
    if slows(prices, links, computes | links):
        return None
    return used, np.asarray(used & slows(prices, computes, links) > 0)


def links_that_slow(program: Program, prices: Prices) -> NDArray[np.int64] | None:
    """Return the rows of links that slow compute or are slowed by it; None in doubt: several compute streams share a rank, or
    links slow links."""
    kinds = _kinds_on_streams(program, prices)
    if kinds is None:
        return None
    used, computes, links = kinds
    if slows(prices, links, links):
        return None
    acts: NDArray[np.bool_] = used & (slows(prices, computes, links) | slowed(prices, links, computes)) > 0
    some = program.rows.links
    return some[acts[program.item[some]]]


def _kinds_on_streams(program: Program, prices: Prices) -> tuple[NDArray[np.int32], int, int] | None:
    """The bits of the kinds that each item uses, those of all compute rows and those of all links; None where several compute streams
    share a rank."""
    if not program.rows.once(("one compute stream per rank",), lambda: _one_compute_stream_per_rank(program)):
        return None
    used = kinds_of_items(prices)
    computing, linking = program.rows.once(("kinds of items", len(used)), lambda: _kinds(program, len(used)))
    computes, links = (int(np.bitwise_or.reduce(used[which])) for which in (computing, linking))
    return used, computes, links


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
