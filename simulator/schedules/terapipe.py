"""TeraPipe: GPipe on slices of the sequence, equal in tokens here (its planner cuts them equal in time)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.order import Action, B, F, PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape
from simulator.schedules.sliced import Sliced

__all__ = ["TeraPipe"]


class TeraPipe(Sliced):
    """All slices of all microbatches forward, then all backward in reverse."""

    name = "terapipe"
    source = "Li et al., TeraPipe, ICML 2021, arXiv:2102.07988"
    instead = "gpipe"

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return F of every microbatch and slice, then B of all in reverse, for every rank."""
        self.check(shape)
        v = shape.chunks_per_rank
        every = [(i, part) for i in range(shape.microbatches) for part in range(v)]

        def of_rank(rank: int) -> Iterator[Action]:
            yield from (F(rank, i, part=part, parts=v) for i, part in every)
            yield from (B(rank, i, part=part, parts=v) for i, part in reversed(every))

        return [of_rank(rank) for rank in range(shape.ranks)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> TeraPipe().order(Shape(1, 1, 2), Placement.linear(Shape(1, 1))).to_text()
        '0F0.1/2,0F0.2/2,0B0.2/2,0B0.1/2\\n'
        """
        self.check(shape)
        v = shape.chunks_per_rank
        size = shape.microbatches * v
        number = np.arange(size, dtype=np.int32)
        microbatch, part = np.divmod(np.concatenate([number, number[::-1]]), v)
        rank = np.arange(shape.ranks, dtype=np.int32)[:, None]
        return PipelineOrder.from_grid(np.repeat([0, 1], size), rank, microbatch, part=part, parts=v)
