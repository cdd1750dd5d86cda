"""Alpa's inner integer programme: a choice for every operation, paid with what the choices of its neighbours bring, within a rank's memory.

x of an operation and a choice is 0 or 1; y of two neighbours and a choice of each is the share of both together: the shares of a choice add
up to its x, so that a whole x leaves one y.  The sum of all costs is least and what a rank holds at most what it has.  HiGHS solves it,
through scipy; where sums tie, the first is taken.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.layouts import Choices, Layouts

__all__ = ["AlpaLayout"]

_GAP = 1e-9
"""Part of the bound at which the solver stops."""


class AlpaLayout(Planner[Choices]):
    """An integer programme."""

    name = "alpa_layout"
    aliases: ClassVar[tuple[str, ...]] = ("alpa_ilp",)
    source = "Zheng et al., Alpa, OSDI 2022; Huangfu and Hall 2018, HiGHS"
    solves = Layouts
    best_of = "layouts that fit"

    def covers(self, problem: Layouts, plan: Choices) -> bool:
        """See `Planner.covers`."""
        return True

    def plan(self, problem: Layouts, oracle: Oracle[Choices], seed: int) -> float | None:
        """See `Planner.plan`."""
        sizes = [len(one) for one in problem.costs]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        edges = list(problem.edges.items())
        places = starts[-1] + np.concatenate(([0], np.cumsum([table.size for _, table in edges], dtype=np.int64)))
        costs = np.concatenate([*problem.costs, *(table.ravel() for _, table in edges)])
        scale = float(costs.max(initial=0.0)) or 1.0
        rows: list[tuple[Any, Any, float]] = []
        for number, size in enumerate(sizes):
            rows += [(number, starts[number] + choice, 1.0) for choice in range(size)]
        count = len(sizes)
        for ((a, b), table), first in zip(edges, places, strict=False):
            shares = first + np.arange(table.size).reshape(table.shape)
            for end, whole in ((a, shares), (b, shares.T)):
                for choice, own in enumerate(whole):
                    rows += [(count, share, 1.0) for share in own.tolist()]
                    rows.append((count, starts[end] + choice, -1.0))
                    count += 1
        at, column, value = (np.array(part) for part in zip(*rows, strict=True))
        total = np.concatenate((np.ones(len(sizes)), np.zeros(count - len(sizes))))
        constraints = [
            LinearConstraint(coo_array((value, (at, column)), shape=(count, len(costs))).tocsr(), total, total)
        ]
        if math.isfinite(problem.memory):
            held = np.concatenate([*problem.held, np.zeros(len(costs) - starts[-1])]) / (problem.memory or 1.0)
            constraints.append(LinearConstraint(held[None, :], -np.inf, 1.0 if problem.memory else 0.0))
        answer = milp(
            c=costs / scale,
            constraints=constraints,
            bounds=Bounds(np.zeros(len(costs)), np.ones(len(costs))),
            integrality=np.arange(len(costs)) < starts[-1],
            options={"time_limit": max(oracle.budget.seconds - oracle.seconds, 0.1), "mip_rel_gap": _GAP},
        )
        oracle.priced(1 + int(getattr(answer, "mip_node_count", 0) or 0))
        if answer.x is not None:
            x = answer.x[: starts[-1]]
            oracle.cost(tuple(int(x[a:b].argmax()) for a, b in itertools.pairwise(starts)))
        bound = getattr(answer, "mip_dual_bound", None)
        return None if bound is None or answer.x is None else float(bound) * scale * (1 - 1e-7)
