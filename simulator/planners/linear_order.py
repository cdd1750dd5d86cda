"""Blocks in a row: what a planner of chains makes of a graph with branches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from simulator.planners.problems.placement import Placement

__all__ = ["in_rows"]


def in_rows(problem: Placement) -> Iterator[Placement]:
    """Yield the problem with every block behind the one before it in a depth-first order: branch after branch.

    Which branch goes first is arbitrary, so there are four: the last or the first branch first, from the sources or from the sinks.
    Contiguous placements of each are contiguous placements of the problem, and it has one ideal more than blocks.
    """
    count, forth = len(problem.blocks), problem.edges
    back = [(b, a) for a, b in forth]
    for row in dict.fromkeys(
        (_depth_first(count, forth), _depth_first(count, forth[::-1], last=True), _depth_first(count, back)[::-1],
         _depth_first(count, back[::-1], last=True)[::-1])
    ):  # fmt: skip
        yield replace(problem, edges=tuple(pairwise(row)))


def _depth_first(count: int, edges: Iterable[tuple[int, int]], last: bool = False) -> tuple[int, ...]:
    """Blocks, each behind all that lead to it, the newest that may go first; where several begin, the last or the first of them."""
    waits = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        waits[b] += 1
        readers[a].append(b)
    ready = [block for block in (range(count) if last else reversed(range(count))) if not waits[block]]
    row = []
    while ready:
        row.append(block := ready.pop())
        for reader in readers[block]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return tuple(row)
