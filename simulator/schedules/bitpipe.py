"""BitPipe: two pipelines in opposite directions, each a V of two chunks per rank: half the bubble of Chimera."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.chimera import Chimera
from simulator.schedules.greedy import greedy_order, greedy_plainly
from simulator.schedules.order import Action, PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["BitPipe"]


class BitPipe(Chimera):
    """Units of p microbatches, half of each in either direction; a rank takes a ready action of the earliest unit.

    Backwards go before forwards, then forwards of deeper chunks and backwards of earlier ones first.  The order is
    decided with forwards as long as backwards (slots, as in Chimera) and messages that take no time, and then kept.
    Placement and units are the paper's; this rule of precedence is ours, since the paper's own order could not be read.
    """

    name = "bitpipe"
    aliases = ()
    source = "Wu et al., BitPipe, arXiv:2410.19367 (placement and units; the rule of precedence is this file's)"

    def check(self, shape: Shape) -> None:
        """Refuse odd ranks, other chunks than two, and microbatches that do not fill units evenly.

        Raises:
            PlanError: p is odd, v is not 2, or m is neither a multiple of p nor an even number below p.
        """
        p, m = shape.ranks, shape.microbatches
        ranks = max(2, p - p % 2)
        unit = 2 if m < ranks else ranks
        nearest = Shape(ranks, max(unit, (m + unit // 2) // unit * unit), 2)
        if p % 2:
            raise self.refuse("the number of ranks is even", shape, nearest)
        if shape.chunks_per_rank != 2:
            raise self.refuse("a rank holds two chunks of each direction", shape, nearest, "use schedule chimera")
        if m % unit:
            rule = "microbatches are even in number below the ranks" if m < p else "microbatches are a multiple of them"
            raise self.refuse(rule, shape, nearest)

    def placement(self, shape: Shape) -> Placement:
        """Return two lanes, 0123 3210 and 3210 0123; of each unit the first half takes lane 0."""
        self.check(shape)
        down = Placement.zigzag(shape).rank_of[0]
        unit = min(shape.ranks, shape.microbatches)
        lane_of = (np.arange(shape.microbatches) % unit >= unit // 2).astype(np.int8)
        return Placement(np.stack([down, shape.ranks - 1 - down]), lane_of)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return what the ranks take, slot by slot."""
        self.check(shape)
        unit = min(shape.ranks, shape.microbatches)

        def precedence(kind: str, chunk: int, i: int) -> tuple[int, ...]:
            return i // unit, -chunk if kind == "F" else chunk, i

        return [iter(actions) for actions in greedy_plainly(placement, (1, 1), precedence)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> print(BitPipe().order(Shape(2, 2, 2), BitPipe().placement(Shape(2, 2, 2))).to_text(), end="")
        0F0,1F1,2F1,3F0,3B0,2B1,1B1,0B0
        0F1,1F0,2F0,3F1,3B1,2B0,1B0,0B1
        """
        self.check(shape)
        return greedy_order(placement, (1, 1), min(shape.ranks, shape.microbatches) // 2)
