"""What schedules with a V of two chunks per rank have in common: stage i and stage 2p-1-i on rank i."""

from __future__ import annotations

from simulator.schedules.base import Schedule, Shape
from simulator.schedules.placement import Placement

__all__ = ["VChunks"]


class VChunks(Schedule):
    """A schedule whose rank i holds the i-th stage from either end; a member gives the order."""

    def check(self, shape: Shape) -> None:
        """Refuse any other number of chunks per rank than two.

        Raises:
            PlanError: `shape.chunks_per_rank` is not 2.
        """
        if shape.chunks_per_rank != 2:
            nearest = Shape(shape.ranks, shape.microbatches, 2)
            raise self.refuse("a rank holds two chunks, one from either end", shape, nearest)

    def placement(self, shape: Shape) -> Placement:
        """Return one lane, 0123 3210.

        Raises:
            PlanError: `check` refuses the shape.
        """
        self.check(shape)
        return Placement.zigzag(shape)
