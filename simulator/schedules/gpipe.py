"""GPipe: all forwards, then all backwards in reverse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.one_chunk import OneChunk
from simulator.schedules.order import Action, B, F, PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["GPipe"]


class GPipe(OneChunk):
    """Fill the pipeline with every forward, then drain it backwards, newest microbatch first."""

    name = "gpipe"
    aliases = ("fill_drain",)
    source = "Huang et al., GPipe, NeurIPS 2019, arXiv:1811.06965"

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return F 0..m-1, then B m-1..0, for every rank."""
        self.check(shape)

        def of_rank(rank: int) -> Iterator[Action]:
            yield from (F(rank, i) for i in range(shape.microbatches))
            yield from (B(rank, i) for i in reversed(range(shape.microbatches)))

        return [of_rank(rank) for rank in range(shape.ranks)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> GPipe().order(Shape(1, 2), Placement.linear(Shape(1, 2))).to_text()
        '0F0,0F1,0B1,0B0\\n'
        """
        self.check(shape)
        microbatch = np.arange(shape.microbatches)
        kind = np.repeat([0, 1], shape.microbatches)
        rank = np.arange(shape.ranks)[:, None]
        return PipelineOrder.from_grid(kind, rank, np.concatenate([microbatch, microbatch[::-1]]))
