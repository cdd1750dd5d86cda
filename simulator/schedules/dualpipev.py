"""DualPipeV: DualPipe cut in half, a V of two chunks per rank, one copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.action import Cell
from simulator.schedules.arrange import by_phrases
from simulator.schedules.dualpipe import dual_cells, dual_phrases
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape
from simulator.schedules.v_chunks import VChunks

__all__ = ["DualPipeV"]


class DualPipeV(VChunks):
    """The phrases of DualPipe; phase 0 is stage i, phase 1 is stage 2p-1-i, and both run every microbatch."""

    name = "dualpipev"
    source = (
        "github.com/deepseek-ai/DualPipe, dualpipev.py; PyTorch 2.13 torch.distributed.pipelining, ScheduleDualPipeV"
    )
    splits_backward = True

    def check(self, shape: Shape) -> None:
        """Refuse other chunks than two, and fewer than 2p microbatches.

        Raises:
            PlanError: v is not 2, or m < 2p.
        """
        least = 2 * shape.ranks
        nearest = Shape(shape.ranks, max(least, shape.microbatches), 2)
        if shape.chunks_per_rank != 2:
            raise self.refuse("a rank holds two chunks, one from either end", shape, nearest)
        if shape.microbatches < least:
            raise self.refuse("microbatches are at least twice the ranks", shape, nearest, "use schedule zbv")

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Cell]]:
        """Return, for every rank, the words that it says, each with the next microbatch of its kind and phase."""
        self.check(shape)
        p, m = shape.ranks, shape.microbatches
        return [dual_cells(p, i, m - 2 * p + i + 1, (i, 2 * p - 1 - i), (0, 0)) for i in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> DualPipeV().order(Shape(1, 2, 2), Placement.zigzag(Shape(1, 2, 2))).to_text()
        '0F0,1F0,0F1,1B0,(1F1;0B0),1B1,0I1,0W1\\n'
        """
        self.check(shape)
        p, m = shape.ranks, shape.microbatches
        rank = np.arange(p)
        return by_phrases(dual_phrases(p, rank, m - 2 * p + rank + 1), [rank, 2 * p - 1 - rank], m)
