"""The contract of planners: a problem says what plans cost, an oracle counts who asks, an answer says how good it is.

Problem   what may be chosen; `cost` of a plan, a `lower_bound` under all of them, `check` of what must hold
Oracle    prices plans, or parts of them, and writes down how many were priced and the best known after so many
Planner   solve(problem, oracle, budget, seed) -> Found
Found     plan, cost, lower bound, evaluations, seconds: from these the gap
"""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from simulator.errors import PlanError, SpecError
from simulator.report.table import Section

__all__ = ["Budget", "Found", "Oracle", "Planner", "Problem"]

Plan = TypeVar("Plan")


class Problem(abc.ABC, Generic[Plan]):
    """What is planned.  Costs are seconds unless `unit` says otherwise.

    Class attributes:
        name: as users write it.
        unit: of its costs.
        objective: what the cost is, in words.
    """

    name: ClassVar[str]
    unit: ClassVar[str] = "s"
    objective: ClassVar[str]

    @property
    @abc.abstractmethod
    def lower_bound(self) -> float:
        """A cost that no plan goes below, found without planning; 0 where nothing better is known."""

    @abc.abstractmethod
    def broken(self, plan: Plan) -> str:
        """Return the rule that a plan breaks, in words that say where; "" where it breaks none."""

    @abc.abstractmethod
    def price(self, plan: Plan) -> float:
        """Return what a plan costs that breaks no rule."""

    def cost(self, plan: Plan) -> float:
        """Return what a plan costs; infinite where it breaks a rule."""
        return math.inf if self.broken(plan) else self.price(plan)

    def check(self, plan: Plan) -> None:
        """Refuse what is no plan.

        Raises:
            PlanError: a rule is broken; the message says which and where.
        """
        if why := self.broken(plan):
            raise PlanError(why)

    @abc.abstractmethod
    def every_plan(self) -> Iterator[Plan]:
        """Yield all plans, one after another: for small problems."""

    @abc.abstractmethod
    def described(self, plan: Plan) -> Section:
        """Return a plan to read."""

    @abc.abstractmethod
    def to_dict(self, plan: Plan) -> dict[str, Any]:
        """Return a plan for `--json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop.  A planner that proves something stops by itself before.

    Args:
        seconds: of wall time; looked at between evaluations.
        evaluations: plans, or parts of plans, that may be priced.
    """

    seconds: float = 60.0
    evaluations: int = 10**9

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise SpecError(f"a planner gets more than 0 seconds, got {self.seconds:g}")
        if self.evaluations < 1:
            raise SpecError(f"a planner gets 1 evaluation or more, got {self.evaluations}")


class OverBudgetError(Exception):
    """A planner's budget is used up (`Oracle.check`)."""


@dataclass(slots=True, kw_only=True, eq=False)
class Oracle(Generic[Plan]):
    """Prices plans of one problem for one planner and keeps the count.

    Attributes:
        evaluations: plans, or parts of plans, that were priced.
        best: the cheapest plan that was offered, and what it costs.
        history: (evaluations, seconds, cost) whenever a plan was offered that is cheaper than all before.
    """

    problem: Problem[Plan]
    budget: Budget = field(default_factory=Budget)
    evaluations: int = 0
    best: tuple[float, Plan] | None = None
    history: list[tuple[int, float, float]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def cost(self, plan: Plan) -> float:
        """Return what a plan costs, and offer it."""
        self.evaluations += 1
        value = self.problem.cost(plan)
        self.offer(plan, value)
        return value

    def priced(self, parts: int) -> None:
        """Count parts of plans that a planner priced itself, with the problem's numbers."""
        self.evaluations += parts

    def offer(self, plan: Plan, value: float) -> None:
        """Keep a plan when it is cheaper than all before."""
        if math.isfinite(value) and (self.best is None or value < self.best[0]):
            self.best = value, plan
            self.history.append((self.evaluations, self.seconds, value))

    @property
    def least(self) -> float:
        """What the cheapest plan costs that was offered; infinite before there is one."""
        return math.inf if self.best is None else self.best[0]

    @property
    def seconds(self) -> float:
        """Wall time since the oracle was made."""
        return time.monotonic() - self.started

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.evaluations >= self.budget.evaluations or self.seconds >= self.budget.seconds

    def check(self) -> None:
        """Leave `Planner.plan` where the budget is used up: in loops that offer no plan before they end.

        Raises:
            OverBudgetError: it is; `Planner.solve` answers with what was offered before.
        """
        if self.over:
            raise OverBudgetError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found(Generic[Plan]):
    """A planner's answer.

    Args:
        planner: its name.
        plan: the best.
        cost: its cost, by the problem's own `cost`.
        lower_bound: no plan of the problem costs less.
        best_of: the family of plans of which this is the cheapest, in words; "" where nothing is proven.
        evaluations: plans, or parts of plans, that were priced.
        seconds: wall time.
        history: see `Oracle.history`.
    """

    planner: str
    plan: Plan
    cost: float
    lower_bound: float
    best_of: str
    evaluations: int
    seconds: float
    history: tuple[tuple[int, float, float], ...]

    @property
    def gap(self) -> float | None:
        """How far the cost may be above the cheapest, as a part of the bound; None without a bound."""
        return max(0.0, self.cost / self.lower_bound - 1.0) if self.lower_bound > 0 else None


class Planner(abc.ABC, Generic[Plan]):
    """Finds a plan of one kind of problem.

    Class attributes:
        name: as users write it.
        aliases: other names.
        source: where it was read.
        solves: the kind of problem; `Problem` = any.
        best_of: the plans of which it finds the cheapest when it ends by itself, in words; "" = it proves nothing.
        draws: whether its answer depends on a seed.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str]
    solves: ClassVar[type[Problem[Any]]]
    best_of: ClassVar[str] = ""
    draws: ClassVar[bool] = False

    def exact(self, problem: Any) -> bool:
        """Whether it finds the cheapest of `best_of` for this problem."""
        return True

    def covers(self, problem: Any, plan: Plan) -> bool:
        """Whether a plan is one of those of which this planner finds the cheapest, as far as that can be told of a plan alone."""
        return False

    @abc.abstractmethod
    def plan(self, problem: Any, oracle: Oracle[Plan], seed: int) -> float | None:
        """Offer plans to the oracle until nothing is left to learn, or `oracle.over`.

        Returns:
            a bound under all plans of the problem that was proven on the way; None where there is none.

        Raises:
            PlanError: no plan can hold, or the planner cannot take a problem of that size; the message says the way out.
        """

    def solve(self, problem: Problem[Plan], budget: Budget | None = None, seed: int = 0) -> Found[Plan]:
        """Return the best plan found.

        Raises:
            PlanError: see `plan`.
        """
        oracle = Oracle(problem=problem, budget=budget or Budget())
        try:
            bound = self.plan(problem, oracle, seed)
        except OverBudgetError:
            bound = None
        if oracle.best is None:
            why = "within its budget" if oracle.over else "that holds"
            raise PlanError(
                f"planner {self.name!r} found no plan {why}. Way out: another planner, more seconds or memory"
            )
        value, plan = oracle.best
        return Found(
            planner=self.name,
            plan=plan,
            cost=value,
            lower_bound=max(problem.lower_bound, bound or 0.0),
            best_of=self.best_of if self.exact(problem) and not oracle.over else "",
            evaluations=oracle.evaluations,
            seconds=oracle.seconds,
            history=tuple(oracle.history),
        )
