"""Placement, order and messages of a schedule at a shape: they do not depend on the model, so all plans share them."""

from __future__ import annotations

import functools
from typing import Any

from simulator.lowering.pattern import Pattern, find_pattern
from simulator.schedules.base import Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["ordered"]


@functools.lru_cache(maxsize=64)
def ordered(schedule: Any, shape: Shape, steps: int = 1) -> tuple[Placement, PipelineOrder, Pattern]:
    """Return (placement, order, messages) of a schedule; of one without a flush, of so many steps after one another.

    Raises:
        PlanError: the schedule has no order for this shape.
    """
    schedule.check(shape)
    placement = schedule.placement(shape)
    if schedule.flush:
        order = schedule.order(shape, placement)
    else:
        placement, order = placement.repeated(steps), schedule.steady_order(shape, steps)
    return placement, order, find_pattern(order, placement)
