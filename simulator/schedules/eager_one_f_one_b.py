"""Eager 1F1B: twice the warm-up of 1F1B, so that a message has a whole turn to arrive; costs twice the activations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.one_chunk import OneChunk
from simulator.schedules.order import Action, B, F, PipelineOrder, warm_up_then_pairs
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["EagerOneFOneB"]


class EagerOneFOneB(OneChunk):
    """Warm up with two forwards per later rank, then alternate one forward with one backward, then drain."""

    name = "eager_one_f_one_b"
    aliases = ("eager_1f1b", "dapple_pb")
    source = "Fan et al., DAPPLE, PPoPP 2021, arXiv:2007.01045, warm-up policy B: min(m, 2(p - i) - 1) forwards"
    sends_ahead = True

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return min(m, 2(p-i)-1) forwards, then B and F in turn, then the other backwards, for every rank i."""
        self.check(shape)

        def of_rank(rank: int) -> Iterator[Action]:
            ahead = min(shape.microbatches, 2 * (shape.ranks - rank) - 1)
            yield from (F(rank, i) for i in range(ahead))
            for i in range(shape.microbatches):
                yield B(rank, i)
                if i + ahead < shape.microbatches:
                    yield F(rank, i + ahead)

        return [of_rank(rank) for rank in range(shape.ranks)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> EagerOneFOneB().order(Shape(2, 3), Placement.linear(Shape(2, 3))).to_text()
        '0F0,0F1,0F2,0B0,0B1,0B2\\n1F0,1B0,1F1,1B1,1F2,1B2\\n'
        """
        self.check(shape)
        rank = np.arange(shape.ranks)
        kind, microbatch = warm_up_then_pairs(2 * (shape.ranks - 1 - rank), shape.microbatches)
        return PipelineOrder.from_grid(kind, rank[:, None], microbatch)
