"""Unity: a handful of substitutions on a divided layer, best first, followed while what they make is at most little worse than the best.

    divide    one operation along one mesh axis more, fewer, or along another dimension
    motion    a movement past an operation: one end of an edge lies as the other wants it (a reduce-scatter that goes behind a norm)
    pair      both ends of an edge at once, so that they and what is between them move least (columns, then rows)

Products of one tensor are merged in the layer graphs already, but for the two of multi-head latent attention and a router's.  What Unity
has beyond that: rules that it generates and verifies, other rewrites of the algebra, a dynamic programme over splits of the graph, and
costs in seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.layouts import Choices, Layouts

__all__ = ["Unity"]

_ALPHA = 1.05
"""Times the best cost that a plan may have from which substitutions go on (TASO, SOSP 2019; from memory, unverified)."""
Substitution = tuple[tuple[int, int], ...]
"""(operation, its new choice) of each that it changes."""


class Unity(Planner[Choices]):
    """Best first over substitutions, from every operation's first choice."""

    name = "unity"
    aliases = ("taso",)
    source = (
        "Unger et al., Unity, OSDI 2022; the search as in flexflow/FlexFlow src/runtime/substitution.cc, base_optimize"
    )
    solves = Layouts

    def plan(self, problem: Layouts, oracle: Oracle[Choices], seed: int) -> float | None:
        """See `Planner.plan`."""
        first = (0,) * len(problem.costs)
        oracle.cost(first)
        seen, waiting = {first}, [(problem.moved(first), first)]
        while waiting:
            moved, plan = heapq.heappop(waiting)
            if moved > _most(oracle):
                break
            for substitution in _substitutions(problem, plan):
                changed = dict(enumerate(plan)) | dict(substitution)
                made = tuple(changed.values())
                if made in seen:
                    continue
                if oracle.over:
                    return None
                seen.add(made)
                oracle.cost(made)
                moved = problem.moved(made)
                if moved <= _most(oracle):
                    heapq.heappush(waiting, (moved, made))
        return None


def _most(oracle: Oracle[Choices]) -> float:
    """Bytes beyond which no plan is followed; before one holds, none."""
    return _ALPHA * oracle.least


def _substitutions(problem: Layouts, plan: Choices) -> Iterator[Substitution]:
    """Yield what may be changed in a plan."""
    for number, choices in enumerate(problem.divides):
        now = {one.axis: one.dimension for one in choices[plan[number]]}
        for choice, along in enumerate(choices):
            then = {one.axis: one.dimension for one in along}
            if sum(now.get(axis) != then.get(axis) for axis in now.keys() | then.keys()) == 1:
                yield ((number, choice),)
    for (one, two), moved in problem.edges.items():
        yield ((two, int(moved[plan[one]].argmin())),)
        yield ((one, int(moved[:, plan[two]].argmin())),)
        both = moved + problem.costs[one][:, None] + problem.costs[two][None, :]
        row, column = np.unravel_index(int(both.argmin()), both.shape)
        yield (one, int(row)), (two, int(column))
