"""What schedules over slices of the sequence have in common: which shapes they take, and where stages live."""

from __future__ import annotations

from typing import ClassVar

from simulator.schedules.base import Schedule, Shape
from simulator.schedules.placement import Placement

__all__ = ["Sliced"]


class Sliced(Schedule):
    """A schedule of one chunk per rank whose microbatches run in v slices; a member gives the order.

    Class attributes:
        instead: the schedule to use with one slice.
    """

    slices = True
    instead: ClassVar[str] = "one_f_one_b"

    def check(self, shape: Shape) -> None:
        """Refuse one slice.

        Raises:
            PlanError: `shape.chunks_per_rank`, here the slices per microbatch, is 1.
        """
        if shape.chunks_per_rank == 1:
            nearest = Shape(shape.ranks, shape.microbatches, 2)
            rule = "a microbatch has two or more slices (given as chunks_per_rank)"
            raise self.refuse(rule, shape, nearest, f"use schedule {self.instead}")

    def placement(self, shape: Shape) -> Placement:
        """Return one lane, stage i on rank i.

        Raises:
            PlanError: `check` refuses the shape.
        """
        self.check(shape)
        return Placement.linear(Shape(shape.ranks, shape.microbatches))
