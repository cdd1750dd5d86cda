"""GEMS: two pipelines in opposite directions, hardly more than one microbatch at work: least memory, most bubble."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, B, F, PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["GEMS"]


class GEMS(Schedule):
    """Every rank runs forward and backward of one microbatch before the next; microbatches change direction in turn.

    So the forward of the next microbatch follows the backward of the last one through the ranks.
    """

    name = "gems"
    source = (
        "Jain et al., GEMS, SC 2020; order as Li and Hoefler describe it, SC 2021, arXiv:2107.06925: two replicas, "
        "at most two microbatches at work, bubble ratio (D-1)/(D+1/2) for B = 2F"
    )
    replicas = 2

    def check(self, shape: Shape) -> None:
        """Refuse chunks, one rank and an odd number of microbatches.

        Raises:
            PlanError: v is not 1, p is 1 or m is odd.
        """
        p, m = max(2, shape.ranks), shape.microbatches + shape.microbatches % 2
        if shape.chunks_per_rank != 1:
            raise self.refuse("a rank holds one chunk of each direction", shape, Shape(p, m))
        if shape.ranks == 1:
            raise self.refuse("two directions take two or more ranks", shape, Shape(p, m), "use schedule one_f_one_b")
        if shape.microbatches % 2:
            raise self.refuse("each direction takes half of the microbatches", shape, Shape(p, m))

    def placement(self, shape: Shape) -> Placement:
        """Return two lanes, stage c on rank c and on rank p-1-c; microbatches take them in turn."""
        self.check(shape)
        return Placement.bidirectional(shape, np.arange(shape.microbatches) % 2)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return F, B of every microbatch in turn, for every rank."""
        self.check(shape)

        def of_rank(rank: int) -> Iterator[Action]:
            for i in range(shape.microbatches):
                chunk = rank if placement.lane_of[i] == 0 else shape.ranks - 1 - rank
                yield F(chunk, i)
                yield B(chunk, i)

        return [of_rank(rank) for rank in range(shape.ranks)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> GEMS().order(Shape(2, 2), GEMS().placement(Shape(2, 2))).to_text()
        '0F0,0B0,1F1,1B1\\n1F0,1B0,0F1,0B1\\n'
        """
        self.check(shape)
        microbatch = np.repeat(np.arange(shape.microbatches), 2)
        rank = np.arange(shape.ranks)[:, None]
        chunk = np.where(placement.lane_of[microbatch] == 0, rank, shape.ranks - 1 - rank)
        return PipelineOrder.from_grid(np.tile([0, 1], shape.microbatches), chunk, microbatch)
