"""Plans that cannot be quicker than one which nobody need look at: they run its kernels, and more.

Whatever a plan makes again it runs beside all that the plan runs which keeps everything; as many kernels run whether optimizer states
and gradients are sharded or not (ZeRO-1 and 2; ZeRO-3 copies and casts others), and more where whole ones are copied to buckets that
stay (DistributedDataParallel); none fewer when messages are hidden behind them or tensors leave for the host.  So plans that differ in
these choices alone are a *family*, and the kernels of its lightest member are a bound for all of it; those that make the same again are
a smaller one, with a closer bound.  The lightest need not have room, nor be of the space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.errors import SimulatorError
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.plan.framework import load_framework
from simulator.search.begun import begun
from simulator.search.bounds import least_of_any_split, least_seconds
from simulator.search.candidate import least_objective
from simulator.search.held import GATHERS, ZERO
from simulator.search.space import Point, Space
from simulator.search.split import BALANCED, SPLIT

__all__ = ["Family", "Lighter", "keeps_everything"]

_BESIDE: Mapping[str, Any] = {
    "plan.overlap_gradients": None,
    "plan.overlap_parameters": None,
    "plan.optimizer_offload": 0.0,
    "plan.activation_offload": None,
    "plan.parameter_offload": 0.0,
}
_AGAIN: Mapping[str, Any] = {
    "plan.recompute": "none",
    "plan.recompute_modules": None,
    "plan.recompute_policy": None,
    "plan.recompute_method": None,
    "plan.recompute_layers": None,
    "plan.recompute_checkpoints": None,
}
"""Field -> its value in the lightest member of a family; those of `_BESIDE` change no kernel."""


def keeps_everything(resolved: ResolvedPlan) -> bool:
    """Return whether a plan makes nothing again, and does nothing with what it keeps that others need not do."""
    return resolved.recompute == "none" and not resolved.style.stacks_saved


class Lighter:
    """Bounds of families, the widest first.

    Args:
        objective: what is made least.
    """

    def __init__(self, space: Space, objective: str) -> None:
        wide, close = {**_BESIDE, **_AGAIN}, dict(_BESIDE)
        kinds = [wide, close] if any(field in _AGAIN for field in space.ranges) else [close]
        self._families = [Family(space, objective, lightest) for lightest in kinds]

    def bound(self, number: int, enough: float) -> tuple[float, Mapping[str, Sequence[int]]]:
        """Return what the objective of a plan of this number is at least, 0 = nothing is known, and field -> numbers of the values that
        others have of which that holds, too.

        Args:
            enough: from which on no closer bound is looked for.
        """
        best: tuple[float, Mapping[str, Sequence[int]]] = 0.0, {}
        for family in self._families:
            if (least := family.bound(number)) > best[0]:
                best = least, family.others(number)
            if best[0] > enough:
                break
        return best


class Family:
    """Plans that differ in some fields alone, and in the ZeRO stage: those that gather weights are another family.

    Args:
        objective: what is made least.
        lightest: field -> its value in the lightest member.
    """

    def __init__(self, space: Space, objective: str, lightest: Mapping[str, object]) -> None:
        self._space, self._objective, self._lightest = space, objective, lightest
        self._again = all(field in lightest for field in _AGAIN)
        self._known: dict[tuple[int, bool], float] = {}
        alike = {field: range(len(values)) for field, values in space.ranges.items() if field in lightest}
        stages = space.ranges.get(ZERO, ())
        split = [
            [place for place, stage in enumerate(stages) if (stage == GATHERS) == gathers] for gathers in (False, True)
        ]
        self._gathering = frozenset(split[True])
        self._others = [alike | ({ZERO: some} if stages else {}) for some in split]
        self._alone = [math.prod(len(values) for values in others.values()) < 2 for others in self._others]

    def bound(self, number: int) -> float:
        """Return what the objective of every member of a plan's family is at least; 0 = nothing is known, or it is alone."""
        if self._alone[self._gathers(number)]:
            return 0.0
        space = self._space
        first = number - sum([space.place(number, field) * space.strides[field] for field in self._others[0]])
        key = first, self._gathers(number)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._found(self._space.at(number))
        return known

    def others(self, number: int) -> Mapping[str, Sequence[int]]:
        """Return field -> numbers of the values that members of a plan's family have, where they differ."""
        return self._others[self._gathers(number)]

    def _gathers(self, number: int) -> bool:
        return bool(self._gathering) and self._space.place(number, ZERO) in self._gathering

    def _found(self, point: Point) -> float:
        values = {field: self._lightest.get(field, value) for field, value in point.values.items()}
        if values.get(ZERO) not in (None, GATHERS):
            values[ZERO] = self._stage(values)
        if point.dealt_out:  # by what its members differ in
            values[SPLIT] = BALANCED
        try:
            one = begun(self._space, Point(self._number(values), values))
            if self._again and not keeps_everything(one.resolved):
                return 0.0
            job, state = one.job, one.state
            seconds = least_of_any_split(job, state) if point.dealt_out else least_seconds(job, state, 0.0)
        except SimulatorError:
            return 0.0
        return least_objective(job, seconds, self._objective)

    def _stage(self, values: Mapping[str, Any]) -> int:
        """The ZeRO stage of these whose plans run the fewest kernels: the least; where whole gradients are copied to buckets, another."""
        stages: list[int] = sorted(stage for stage in self._space.ranges[ZERO] if stage not in (None, GATHERS))
        framework = load_framework(values.get("plan.framework") or self._space.job.plan.framework)
        return next((stage for stage in stages if stage or not framework.keeps_buckets), stages[0])

    def _number(self, values: Mapping[str, Any]) -> int:
        """The number of the plan with these values; -1 where the space has none."""
        try:
            return self._space.number(values)
        except ValueError:
            return -1
