"""Combined 1F1B: the forward of one microbatch fused with the backward of another, so that each hides the other's exchanges.

1F1B        F0 F1 B0 F2 B1 F3 B2 ...
combined    F0 F1 F2 (F3 B0) (F4 B1) ...        one forward more in flight
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.action import Cell
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.interleaved_1f1b import Interleaved1F1B, round_size
from simulator.schedules.order import B, F, PipelineOrder, warm_up_then_pairs
from simulator.schedules.placement import Placement

__all__ = ["Combined1F1B"]


class Combined1F1B(Schedule):
    """Interleaved 1F1B with one more forward in its warm-up; after it every forward goes together with a backward.

    Without a pipeline (one rank, one chunk) the forward of a microbatch goes with the backward of the one before it.
    """

    name = "combined_1f1b"
    aliases = ("1f1b_overlap", "ep_overlap_1f1b")
    source = "Megatron-LM core/pipeline_parallel/combined_1f1b.py (--overlap-moe-expert-parallel-comm)"

    def check(self, shape: Shape) -> None:
        """Refuse one chunk per rank in a pipeline, and what the interleaved order refuses.

        Raises:
            PlanError: see `Interleaved1F1B.check`.
        """
        if shape.ranks > 1 or shape.chunks_per_rank > 1:
            Interleaved1F1B().check(shape)

    def placement(self, shape: Shape) -> Placement:
        """Return one lane, chunk c on rank c mod p."""
        self.check(shape)
        return Placement.linear(shape)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Cell]]:
        """Return min(m*v, 2(p-1-i) + (v-1)g + 1) forwards, then fused pairs, then the other backwards, for every rank i."""
        self.check(shape)
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        g = round_size(m, p)
        visits = [(turn, i) for start in range(0, m, g) for turn in range(v) for i in range(start, start + g)]

        def of_rank(rank: int) -> Iterator[Cell]:
            forwards = [F(turn * p + rank, i) for turn, i in visits]
            backwards = [B((v - 1 - turn) * p + rank, i) for turn, i in visits]
            warm_up = min(m * v, 2 * (p - 1 - rank) + (v - 1) * g + 1)
            yield from forwards[:warm_up]
            yield from zip(forwards[warm_up:], backwards, strict=False)
            yield from backwards[m * v - warm_up :]

        return [of_rank(rank) for rank in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> Combined1F1B().order(Shape(1, 3), Placement.linear(Shape(1, 3))).to_text()
        '0F0,(0F1;0B0),(0F2;0B1),0B2\\n'
        """
        self.check(shape)
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        g = round_size(m, p)
        rank = np.arange(p, dtype=np.int32)
        warm_up = np.minimum(2 * (p - 1 - rank) + (v - 1) * g + 1, m * v)
        kind, number = warm_up_then_pairs(warm_up, m * v)
        visit = np.arange(m * v, dtype=np.int32)
        turn = visit // g % v
        chunk = np.stack([turn, v - 1 - turn])[kind, number] * p + rank[:, None]
        microbatch = (visit // (g * v) * g + visit % g)[number]
        column = np.arange(2 * m * v)
        fused = (column >= warm_up[:, None]) & (column < 2 * m * v - warm_up[:, None])
        partner = rank[:, None] * (2 * m * v) + column + np.where(kind == 0, 1, -1)
        return PipelineOrder.from_grid(kind, chunk, microbatch, pair=np.where(fused, partner, -1))
