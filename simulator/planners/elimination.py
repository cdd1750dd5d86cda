"""Node and edge elimination: the best layout of graphs that are nearly series-parallel, without trying all.

An operation with one neighbour or two goes: for every choice of these its own best choice is known, so its costs become theirs (node
elimination); what two operations then have between them is added up (edge elimination).  When three neighbours or more are left everywhere
the operation with the fewest goes all the same, over a table of as many dimensions.  Nothing is lost on the way (Jia et al., OptCNN,
ICML 2018; the rest is bucket elimination, Dechter 1999, where OptCNN tries all).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.errors import refuse
from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.layouts import Choices, Layouts

__all__ = ["Elimination", "eliminate", "next_to_go"]

_MOST_ENTRIES = 20_000_000
Factor = tuple[tuple[int, ...], NDArray[np.float64]]
"""Operations, and costs by their choices."""


class Elimination(Planner[Choices]):
    """The best layout, memory not asked."""

    name = "elimination"
    aliases: ClassVar[tuple[str, ...]] = ("optcnn",)
    source = "Jia, Lin, Qi and Aiken, ICML 2018 (OptCNN); Dechter 1999"
    solves = Layouts
    best_of = "all layouts"

    def exact(self, problem: Layouts) -> bool:
        """See `Planner.exact`: it does not look at memory."""
        return math.isinf(problem.memory)

    def covers(self, problem: Layouts, plan: Choices) -> bool:
        """See `Planner.covers`."""
        return self.exact(problem)

    def plan(self, problem: Layouts, oracle: Oracle[Choices], seed: int) -> float | None:
        """See `Planner.plan`; the least without a limit of memory bounds all layouts."""
        plan, priced = eliminate(problem, problem.costs)
        oracle.priced(priced)
        oracle.cost(plan)
        return problem.moved(plan)


def eliminate(problem: Layouts, costs: Sequence[NDArray[np.float64]]) -> tuple[Choices, int]:
    """Return the best plan, and how many combinations were priced.

    Args:
        costs: of the choices of each operation, in place of the problem's own; infinite = forbidden.

    Raises:
        PlanError: too many operations hang together.
    """
    factors: list[Factor] = [((number,), np.asarray(one)) for number, one in enumerate(costs)]
    factors += list(problem.edges.items())
    sizes = [len(one) for one in costs]
    left, gone, priced = set(range(len(costs))), [], 0
    while left:
        node, others = next_to_go([over for over, _ in factors], left, sizes)
        over = (node, *others)
        entries = math.prod(sizes[n] for n in over)
        if entries > _MOST_ENTRIES:
            refuse(
                f"elimination makes tables of at most {_MOST_ENTRIES:,} entries",
                f"{len(over)} operations hang together in one of {entries:,}",
                "a mesh of fewer axes",
            )
        table = np.zeros([sizes[n] for n in over])
        for inside, one in (factor for factor in factors if node in factor[0]):
            table = table + _spread(inside, one, over)
        priced += table.size
        gone.append((node, others, table.argmin(axis=0)))
        factors = [factor for factor in factors if node not in factor[0]] + [(others, table.min(axis=0))]
        left.discard(node)
    plan: dict[int, int] = {}
    for node, others, choice in reversed(gone):
        plan[node] = int(choice[tuple(plan[n] for n in others)])
    return tuple(plan[number] for number in range(len(costs))), priced


def next_to_go(tables: Sequence[tuple[int, ...]], left: set[int], sizes: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return the operation whose table over it and its neighbours is smallest, the first of equals, and these neighbours.

    Args:
        tables: operations of each.
        left: operations that did not go yet; `sizes`: choices of all.
    """
    near = {one: {n for over in tables if one in over for n in over} for one in left}
    node = min(left, key=lambda one: (math.prod(sizes[n] for n in near[one]), one))
    return node, tuple(sorted(near[node] - {node}))


def _spread(inside: tuple[int, ...], values: NDArray[np.float64], over: tuple[int, ...]) -> NDArray[np.float64]:
    """Costs of some operations as a table over more of them."""
    order = sorted(range(len(inside)), key=lambda place: over.index(inside[place]))
    values = values.transpose(order)
    sizes = dict(zip((inside[place] for place in order), values.shape, strict=True))
    return values.reshape([sizes.get(n, 1) for n in over])
