"""1F1B: after a short warm-up every rank alternates one forward with one backward, so few activations wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.one_chunk import OneChunk
from simulator.schedules.order import Action, B, F, PipelineOrder, warm_up_then_pairs
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["OneFOneB"]


class OneFOneB(OneChunk):
    """Warm up with one forward per later rank, then alternate one forward with one backward, then drain."""

    name = "one_f_one_b"
    aliases = ("1f1b", "dapple", "pipedream_flush")
    source = "Narayanan et al., SC 2021, arXiv:2104.04473 (PipeDream-flush); Fan et al., DAPPLE, arXiv:2007.01045"

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return min(m, p-1-i) forwards, then pairs of F and B, then the other backwards, for every rank i."""
        self.check(shape)

        def of_rank(rank: int) -> Iterator[Action]:
            warm_up = min(shape.ranks - 1 - rank, shape.microbatches)
            yield from (F(rank, i) for i in range(warm_up))
            for i in range(shape.microbatches - warm_up):
                yield F(rank, warm_up + i)
                yield B(rank, i)
            yield from (B(rank, i) for i in range(shape.microbatches - warm_up, shape.microbatches))

        return [of_rank(rank) for rank in range(shape.ranks)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> OneFOneB().order(Shape(2, 3), Placement.linear(Shape(2, 3))).to_text()
        '0F0,0F1,0B0,0F2,0B1,0B2\\n1F0,1B0,1F1,1B1,1F2,1B2\\n'
        """
        self.check(shape)
        rank = np.arange(shape.ranks)
        kind, microbatch = warm_up_then_pairs(shape.ranks - 1 - rank, shape.microbatches)
        return PipelineOrder.from_grid(kind, rank[:, None], microbatch)
