"""Breadth-first: several chunks per rank, each run for all microbatches at once, so its weights are gathered once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, B, F, PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["BreadthFirst"]


class BreadthFirst(Schedule):
    """All forwards chunk by chunk, then all backwards chunk by chunk from the last.

    Class attributes:
        newest_first: whether the backwards of a chunk run the newest microbatch first.
    """

    name = "breadth_first"
    aliases: ClassVar[tuple[str, ...]] = ("looped_breadth_first",)
    source = "Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023, arXiv:2211.05953"
    newest_first: ClassVar[bool] = False

    def check(self, shape: Shape) -> None:
        """Refuse one chunk per rank.

        Raises:
            PlanError: `shape.chunks_per_rank` is 1.
        """
        if shape.chunks_per_rank == 1:
            nearest = Shape(shape.ranks, shape.microbatches, 2)
            raise self.refuse("a rank holds two or more chunks", shape, nearest, "use schedule gpipe")

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return F of chunk 0 for all microbatches, of chunk 1, ..., then B from the last chunk, for every rank."""
        self.check(shape)
        chunks = range(shape.chunks_per_rank)
        drain = list(range(shape.microbatches))[:: -1 if self.newest_first else 1]

        def of_rank(rank: int) -> Iterator[Action]:
            yield from (F(turn * shape.ranks + rank, i) for turn in chunks for i in range(shape.microbatches))
            yield from (B(turn * shape.ranks + rank, i) for turn in reversed(chunks) for i in drain)

        return [of_rank(rank) for rank in range(shape.ranks)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> BreadthFirst().order(Shape(1, 2, 2), Placement.linear(Shape(1, 2, 2))).to_text()
        '0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\\n'
        """
        self.check(shape)
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        turn, microbatch = np.divmod(np.arange(m * v, dtype=np.int32), m)
        drain = m - 1 - microbatch if self.newest_first else microbatch
        chunk = np.concatenate([turn, turn[::-1]]) * p + np.arange(p, dtype=np.int32)[:, None]
        return PipelineOrder.from_grid(np.repeat([0, 1], m * v), chunk, np.concatenate([microbatch, drain]))
