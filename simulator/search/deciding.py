"""What decides that a plan is refused: the fields that were asked for until it was.

A rule that says no has asked for some fields of a plan only, by itself or by the facts it takes.  Every plan that has the same values
of these breaks it too, whatever rules it broke before: of a space, a whole block at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import PrivateAttr

from simulator.errors import SimulatorError
from simulator.lowering.resolve.facts import RULES, Facts
from simulator.plan.plan import Plan
from simulator.search.candidate import check_runs
from simulator.search.defaults import repeated
from simulator.search.space import Point, Space
from simulator.search.split import SPLIT, check_dealt

__all__ = ["deciding_fields"]

Rule = Callable[[Facts], object]
_DEALT: tuple[Rule, ...] = (lambda facts: check_dealt(facts.chunks),)
"""What a split that depends on the plan asks for beyond the rules; it asks both of the plan that leaves its layers open."""
_BEYOND: tuple[Rule, ...] = (lambda facts: check_runs(facts.framework, facts.schedule, facts.plan),)


def deciding_fields(space: Space, point: Point, refusal: str) -> frozenset[str]:
    """Return the ranged fields of a refused plan that decide that: who has its values of them is refused, too.

    Args:
        refusal: of the plan.
    """
    every = frozenset(space.ranges)
    if space.offered:
        values = _Values(point.values)
        if repeated(values):
            return frozenset(values.seen)
    try:
        job = space.job_of(point.balanced)
    except SimulatorError:
        return every
    where = job.cluster.world_size, f"cluster {job.cluster.name!r}"
    rules = (*RULES, *_DEALT * point.dealt_out, *_BEYOND * space.by_framework)
    rule = _broken(Facts(job.workload, job.plan, *where), refusal, rules)
    if rule is None:
        return every
    plan = _watched(job.plan)
    with suppress(SimulatorError):
        rule(Facts(job.workload, plan, *where))
    fields = {f"plan.{name}" for name in _seen_of(plan)} | ({SPLIT} if rule in _DEALT else set())
    return frozenset(field for field in every if field in fields or not field.startswith("plan."))


def _broken(facts: Facts, refusal: str, rules: tuple[Rule, ...]) -> Rule | None:
    """The rule that refuses a plan so; None where it is none of these."""
    for rule in rules:
        try:
            rule(facts)
        except SimulatorError as error:
            return rule if str(error) == refusal else None
    return None


class _Watched(Plan):
    """A plan that knows which of its fields were asked for; all, where somebody took them together."""

    _seen: set[str] = PrivateAttr(default_factory=set)

    def __getattribute__(self, name: str) -> object:
        if name in _NAMES:
            _seen_of(self).add(name)
        elif name == "__dict__":
            _seen_of(self).update(_NAMES)
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.__dict__ == other.__dict__

    __hash__ = Plan.__hash__


_NAMES = frozenset(Plan.model_fields)


def _seen_of(plan: _Watched) -> set[str]:
    private: dict[str, Any] | None = object.__getattribute__(plan, "__pydantic_private__")
    found: set[str] = private["_seen"] if private else set()
    return found


def _watched(plan: Plan) -> _Watched:
    made = _Watched.model_construct(set(plan.model_fields_set), **{name: getattr(plan, name) for name in _NAMES})
    _seen_of(made).clear()
    return made


class _Values(Mapping[str, Any]):
    """Values of a point that know which were asked for."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.seen: set[str] = set()

    def __getitem__(self, field: str) -> object:
        self.seen.add(field)
        return self._values[field]

    def __contains__(self, field: object) -> bool:
        return field in self._values

    def __iter__(self) -> Iterator[str]:
        self.seen.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
