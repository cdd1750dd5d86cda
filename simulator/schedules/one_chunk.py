"""What schedules of one lane with one chunk per rank have in common: which shapes they take."""

from __future__ import annotations

from typing import ClassVar

from simulator.schedules.base import Schedule, Shape

__all__ = ["OneChunk"]


class OneChunk(Schedule):
    """A schedule whose rank i holds stage i and nothing else; a member gives the order.

    Class attributes:
        instead: the schedule to use with several chunks per rank.
    """

    instead: ClassVar[str] = "interleaved_1f1b"

    def check(self, shape: Shape) -> None:
        """Refuse more than one chunk per rank.

        Raises:
            PlanError: `shape.chunks_per_rank` is not 1.
        """
        if shape.chunks_per_rank != 1:
            nearest = Shape(shape.ranks, shape.microbatches)
            raise self.refuse("a rank holds one chunk", shape, nearest, f"use schedule {self.instead}")
