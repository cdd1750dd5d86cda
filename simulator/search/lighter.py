"""Plans that cannot be quicker than one that was looked at: they run its kernels, and more.

Whatever a plan computes again it runs beside all that the plan runs which keeps everything, and as many kernels whether optimizer states
and gradients are sharded or not (ZeRO-1 and 2; ZeRO-3 copies more).  So when the kernels alone of a plan that keeps everything and has
room take longer than the best plans, nobody has to look for the kernels of its siblings, which hold no more.
"""

from __future__ import annotations

import math
from typing import Any

from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.search.space import Point, Space

__all__ = ["Lighter", "keeps_everything"]

_AGAIN = ("recompute", "recompute_modules", "recompute_policy", "recompute_method", "recompute_layers")
_ZERO = "plan.zero_stage"
_GATHERS = 3
"""The stage from which on weights are gathered, layer by layer."""


def keeps_everything(resolved: ResolvedPlan) -> bool:
    """Return whether a plan makes nothing again, and does nothing with what it keeps that others need not do."""
    return resolved.recompute == "none" and not resolved.style.stacks_saved


class Lighter:
    """Bounds by the kernels of plans that keep everything, for those that differ in recompute and ZeRO stage."""

    def __init__(self, space: Space) -> None:
        names = list(space.ranges)
        self._known: dict[tuple[int, Any], float] = {}
        self._stages = space.ranges.get(_ZERO, (None,))
        self._strides: list[tuple[int, int]] = []
        for place, name in enumerate(names):
            if name == _ZERO or name in [f"plan.{field}" for field in _AGAIN]:
                behind = math.prod(len(space.ranges[other]) for other in names[place + 1 :])
                self._strides.append((behind, len(space.ranges[name])))

    def learn(self, point: Point, bound: float) -> None:
        """Take the bound of a plan that keeps everything, of its kernels alone, for its siblings that hold no more."""
        own = point.values.get(_ZERO)
        for stage in self._stages:
            if stage == own or (own is not None and stage is not None and own <= stage < _GATHERS):
                self._known[self._family(point.number), stage] = bound

    def bound(self, point: Point) -> float:
        """Return what is known of a plan so; 0 = nothing."""
        return self._known.get((self._family(point.number), point.values.get(_ZERO)), 0.0) if self._known else 0.0

    def _family(self, number: int) -> int:
        """The number of the first plan that differs from this one in recompute and ZeRO stage alone."""
        return number - sum([number // stride % count * stride for stride, count in self._strides])
