"""Placement, order and messages of a schedule at a shape: they do not depend on the model, so all plans share them."""

from __future__ import annotations

import functools

from simulator.lowering.steps.pattern import Pattern
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["ordered"]


@functools.lru_cache(maxsize=64)
def ordered(schedule: Schedule, shape: Shape, steps: int = 1) -> tuple[Placement, PipelineOrder, Pattern]:
    """Return (placement, order, messages) of a schedule, of so many steps after one another on every rank.

    Without a flush they run into each other as the schedule says; else a rank ends its part of a step before the next.

    Raises:
        PlanError: the schedule has no order for this shape.
    """
    schedule.check(shape)
    placement = schedule.placement(shape)
    if not schedule.flush:
        placement, order = placement.repeated(steps), schedule.steady_order(shape, steps)
    else:
        order = schedule.order(shape, placement)
        if steps > 1:
            placement, order = placement.repeated(steps), order.repeated(steps, shape.microbatches)
    return placement, order, Pattern(order, placement)
