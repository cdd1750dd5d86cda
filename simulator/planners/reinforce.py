"""Placement by policy gradients: draw placements, and make likelier what was better than usual.

The policy is a table of one logit per block and place, so it learns this graph and no other; the paper's is a recurrent network over a
graph's operators, trained for hours on measured steps.  It is here to be compared by the evaluations it takes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.placement import Assignment, Placement

__all__ = ["Reinforce"]

_UPDATES = 300
_DRAWS = 32
"""Placements per update."""
_RATE = 1.0


class Reinforce(Planner[Assignment]):
    """Williams' rule with the mean of the draws as baseline."""

    name = "reinforce"
    aliases: ClassVar[tuple[str, ...]] = ("policy_gradient",)
    source = "Mirhoseini et al., ICML 2017, arXiv 1706.04972; Williams 1992"
    solves = Placement
    draws = True

    def plan(self, problem: Placement, oracle: Oracle[Assignment], seed: int) -> float | None:
        """See `Planner.plan`."""
        random = np.random.default_rng(seed)
        places = problem.devices + problem.hosts
        own = problem.own_seconds
        logits = np.where(np.isinf(own), -np.inf, 0.0)
        for _ in range(_UPDATES):
            if oracle.over:
                break
            chances = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            drawn = (chances.cumsum(axis=1)[None] < random.random((_DRAWS, len(own), 1))).sum(axis=2)
            drawn = np.minimum(drawn, places - 1)
            costs = np.array([oracle.cost(tuple(one.tolist())) for one in drawn])
            fits = np.isfinite(costs)
            if fits.sum() < 2:
                continue
            spread = float(costs[fits].std())
            gain = np.where(fits, (costs[fits].mean() - np.where(fits, costs, 0.0)) / (spread or 1.0), -1.0)
            taken = np.eye(places)[drawn]
            logits = logits + _RATE * (gain[:, None, None] * (taken - chances)).mean(axis=0)
        return None
