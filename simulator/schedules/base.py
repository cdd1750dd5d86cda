"""What every pipeline schedule gives: the shapes it accepts, where chunks live, and the order of actions per rank.

A new schedule is one file in this package with one subclass of `Schedule`; the family finds it by its file name.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.errors import PlanError
from simulator.schedules.action import Cell
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["Schedule", "Shape"]


class Schedule(abc.ABC):
    """One pipeline schedule.

    Class attributes:
        name: the name of its file.
        aliases: other names that users and other programs give it.
        source: where the rule was read.
        flush: whether all microbatches of a step end before the weights change.
        sends_ahead: whether ranks send forwards long before the receiver takes them, which needs receives posted ahead.
        splits_backward: whether it runs I and W, instead of B or beside it.
        replicas: number of lanes that hold a copy of the weights.
        updates_each_microbatch: of one without a flush, whether weights change after every backward, or once per step.
        slices: whether parts are slices of the sequence, which causal attention makes unequal in time; where they are,
            `Shape.chunks_per_rank` is the number of slices, and a rank holds one chunk.
        deals: whether the replicas of a stage take microbatches in turn, where stages have as many replicas as they like (`dealt`).
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str]
    flush: ClassVar[bool] = True
    updates_each_microbatch: ClassVar[bool] = False
    sends_ahead: ClassVar[bool] = False
    splits_backward: ClassVar[bool] = False
    replicas: ClassVar[int] = 1
    slices: ClassVar[bool] = False
    deals: ClassVar[bool] = False

    @abc.abstractmethod
    def check(self, shape: Shape) -> None:
        """Accept a shape or refuse it.

        Raises:
            PlanError: the schedule has no order for this shape; the message ends with the nearest shape that works.
        """

    def placement(self, shape: Shape) -> Placement:
        """Return where the chunks live: in one lane, chunk c on rank c mod p, unless a member says otherwise.

        Raises:
            PlanError: `check` refuses the shape.
        """
        self.check(shape)
        return Placement.linear(shape)

    @abc.abstractmethod
    def readable(self, shape: Shape, placement: Placement) -> Sequence[Iterator[Cell]]:
        """Return, per rank, its actions in order, one object each (a tuple for a fused pair): the rule as read by a person.

        Raises:
            PlanError: `check` refuses the shape.
        """

    @abc.abstractmethod
    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the same order as arrays, made without one object per action.

        It covers `steps(shape)` steps, so it fits `placement.repeated(schedule.steps(shape))`.

        Raises:
            PlanError: `check` refuses the shape.
        """

    def held(self, chunks_per_rank: int) -> int:
        """Return how many chunks of layers a rank holds where a plan says `chunks_per_rank`: one where that counts slices."""
        return 1 if self.slices else chunks_per_rank

    def steps(self, shape: Shape) -> int:
        """Return how many consecutive steps `order` covers: 1, or enough to see the steady state without a flush."""
        return 1 if self.flush else 2 * math.ceil(2 * shape.ranks / shape.microbatches) + 2

    def steady_order(self, shape: Shape, steps: int) -> PipelineOrder:
        """Return the order of several steps that follow each other without a flush; microbatches are numbered through.

        Raises:
            PlanError: the schedule flushes after every step, or `check` refuses the shape.
        """
        raise PlanError(
            f"steps run into each other only where weights change without a flush: schedule {self.name} flushes; "
            f"ask for one step, or use schedule pipedream (got {steps} steps)"
        )

    def dealt(self, widths: tuple[int, ...]) -> Schedule:
        """Return the schedule for stages of so many replicas, which take microbatches in turn; a rank of its order does what all of
        a stage's replicas do.

        Raises:
            PlanError: replicas split microbatches under this one.
        """
        raise PlanError(
            f"replicas of a stage take microbatches in turn under schedule pipedream; under {self.name} they split each (got {widths})"
        )

    def weight_versions(self, shape: Shape) -> NDArray[np.int64]:
        """Return, per rank, how many versions of the weights of each lane it keeps; 1 where every step ends alike."""
        return np.ones(shape.ranks, np.int64)

    def refuse(self, rule: str, shape: Shape, nearest: Shape, hint: str = "") -> PlanError:
        """Return the error for `check` to raise: rule, values, the nearest shape that works, another way out."""
        also = f"; or {hint}" if hint else ""
        return PlanError(f"schedule {self.name}: {rule}; got {shape}; nearest that works: {nearest}{also}")
