"""ZB-H1: 1F1B with the backward split; weight gradients wait and fill the bubbles, within the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from simulator.schedules.arrange import by_slots
from simulator.schedules.one_chunk import OneChunk
from simulator.schedules.order import Action, F, I, PipelineOrder, W
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["ZBH1"]


class ZBH1(OneChunk):
    """With j = `depth`: rank i runs j(p-i)-(j-1) forwards ahead, and its weight gradients lag j*i input gradients.

    Class attributes:
        depth: j; 1 keeps the memory of 1F1B, 2 nearly doubles it and empties the pipeline of bubbles.
    """

    name = "zb_h1"
    source = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, hand-made schedule ZB-H1"
    splits_backward = True
    instead = "zb_interleaved"
    depth: ClassVar[int] = 1

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return the forwards ahead, then I, the oldest W once enough lag, and F in turn, then the other W."""
        self.check(shape)
        p, m = shape.ranks, shape.microbatches

        def of_rank(rank: int) -> Iterator[Action]:
            ahead = self.depth * (p - rank) - (self.depth - 1)
            lag = self.depth * rank
            yield from (F(rank, i) for i in range(min(ahead, m)))
            for i in range(m):
                yield I(rank, i)
                if i >= lag:
                    yield W(rank, i - lag)
                if i + ahead < m:
                    yield F(rank, i + ahead)
            yield from (W(rank, i) for i in range(max(0, m - lag), m))

        return [of_rank(rank) for rank in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays: turn k has I(k), W(k - lag), F(k + ahead) in this order.

        >>> ZBH1().order(Shape(2, 2), Placement.linear(Shape(2, 2))).to_text()
        '0F0,0F1,0I0,0W0,0I1,0W1\\n1F0,1I0,1F1,1I1,1W0,1W1\\n'
        """
        self.check(shape)
        number = np.arange(shape.microbatches, dtype=np.int32)
        rank = np.arange(shape.ranks, dtype=np.int32)[:, None]
        ahead = self.depth * (shape.ranks - rank) - (self.depth - 1)
        forwards, weights = 3 * (number - ahead) + 2, 3 * (number + self.depth * rank) + 1
        inputs = np.broadcast_to(3 * number, forwards.shape)
        slots = np.concatenate([forwards, inputs, weights], axis=1)
        return by_slots(slots, np.repeat([0, 2, 3], shape.microbatches), rank, np.tile(number, 3))
