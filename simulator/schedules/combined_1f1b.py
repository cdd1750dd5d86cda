"""Combined 1F1B: the forward of one microbatch fused with the backward of another, so that each hides the other's exchanges.

1F1B        F0 F1 B0 F2 B1 F3 B2 ...
combined    F0 F1 F2 (F3 B0) (F4 B1) ...        one forward more in flight
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.action import Cell
from simulator.schedules.interleaved_1f1b import Interleaved1F1B
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["Combined1F1B"]


class Combined1F1B(Interleaved1F1B):
    """Interleaved 1F1B with one more forward in its warm-up; after it every forward goes together with a backward.

    Without a pipeline (one rank, one chunk) the forward of a microbatch goes with the backward of the one before it.
    """

    name = "combined_1f1b"
    aliases = ("1f1b_overlap", "ep_overlap_1f1b")
    source = "Megatron-LM core/pipeline_parallel/combined_1f1b.py (--overlap-moe-expert-parallel-comm)"
    more_ahead = 1

    def check(self, shape: Shape) -> None:
        """Refuse one chunk per rank in a pipeline, and what the interleaved order refuses.

        Raises:
            PlanError: see `Interleaved1F1B.check`.
        """
        if shape.ranks > 1 or shape.chunks_per_rank > 1:
            Interleaved1F1B().check(shape)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Cell]]:
        """Return min(m*v, 2(p-1-i) + (v-1)g + 1) forwards, then fused pairs, then the other backwards, for every rank i."""
        self.check(shape)

        def of_rank(rank: int) -> Iterator[Cell]:
            forwards, backwards, warm_up = self.passes(shape, rank)
            yield from forwards[:warm_up]
            yield from zip(forwards[warm_up:], backwards, strict=False)
            yield from backwards[len(forwards) - warm_up :]

        return [of_rank(rank) for rank in range(shape.ranks)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> Combined1F1B().order(Shape(1, 3), Placement.linear(Shape(1, 3))).to_text()
        '0F0,(0F1;0B0),(0F2;0B1),0B2\\n'
        """
        self.check(shape)
        warm_up, kind, chunk, microbatch = self.grid(shape)
        columns = kind.shape[1]
        column = np.arange(columns)
        fused = (column >= warm_up[:, None]) & (column < columns - warm_up[:, None])
        partner = np.arange(shape.ranks)[:, None] * columns + column + np.where(kind == 0, 1, -1)
        return PipelineOrder.from_grid(kind, chunk, microbatch, pair=np.where(fused, partner, -1))
