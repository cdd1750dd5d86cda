"""Markov chain Monte Carlo over layouts: one operation at random divided otherwise, kept when it moves less, or by luck.

What a proposal changes is priced, nothing else: an operation's own costs and its edges (FlexFlow's delta simulation).  Bytes are sums of
halves of halves on meshes of powers of two, so the running sum is that of the whole plan to the last bit.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.layouts import Choices, Layouts

__all__ = ["MarkovChain", "difference"]

_PROPOSALS = 200
"""Per choice of an operation."""
_TEMPERATURE = 0.05
"""A proposal that is worse by this part of the cost is taken with probability 1/e."""


class MarkovChain(Planner[Choices]):
    """Metropolis' rule, from every operation's first choice."""

    name = "mcmc"
    aliases: ClassVar[tuple[str, ...]] = ("flexflow",)
    source = "Jia, Zaharia and Aiken, MLSys 2019 (FlexFlow), arXiv 1807.05358"
    solves = Layouts
    draws = True

    def plan(self, problem: Layouts, oracle: Oracle[Choices], seed: int) -> float | None:
        """See `Planner.plan`."""
        random = np.random.default_rng(seed)
        sizes = [len(costs) for costs in problem.costs]
        free = [number for number, size in enumerate(sizes) if size > 1]
        plan = [0] * len(sizes)
        now = problem.moved(tuple(plan))
        oracle.cost(tuple(plan))
        for _ in range(_PROPOSALS * sum(sizes) * bool(free)):
            if oracle.over:
                break
            number = free[int(random.integers(len(free)))]
            choice = int(random.integers(sizes[number]))
            more = difference(problem, plan, number, choice)
            oracle.priced(1)
            if more <= 0 or random.random() < math.exp(-more / (_TEMPERATURE * max(now, 1.0))):
                plan[number] = choice
                now += more
                if oracle.best and now < oracle.least:
                    oracle.offer(tuple(plan), problem.cost(tuple(plan)))
        return None


def difference(problem: Layouts, plan: list[int], number: int, choice: int) -> float:
    """Return the bytes that a plan moves more when one operation has another choice: its own costs and its edges are looked at."""
    old = plan[number]
    more = float(problem.costs[number][choice] - problem.costs[number][old])
    for (a, b), table in problem.edges.items():
        if a == number:
            more += float(table[choice, plan[b]] - table[old, plan[b]])
        elif b == number:
            more += float(table[plan[a], choice] - table[plan[a], old])
    return more
