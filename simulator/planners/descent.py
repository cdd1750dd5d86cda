"""Local search: random placements, then always the single move that lowers the fullest load most.

A move changes the loads of two places only, by the outputs that the block makes or reads, so all moves are priced at once by two sparse
products: (blocks, outputs) times what one member more, or one less, does to each output on each place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.placement import Assignment, Placement

__all__ = ["Descent", "moves"]

_STARTS = 10
"""As in the paper's experiments."""
_LEAST = 1e-8
"""A step below this part of the load is none."""


class Descent(Planner[Assignment]):
    """Steepest descent from ten random placements; they need not be contiguous."""

    name = "local_search"
    source = "arXiv 2006.16423, local search"
    solves = Placement
    draws = True

    def plan(self, problem: Placement, oracle: Oracle[Assignment], seed: int) -> float | None:
        """See `Planner.plan`."""
        random = np.random.default_rng(seed)
        for _ in range(_STARTS):
            places = random.integers(problem.devices, size=len(problem.blocks))
            places = np.where(np.isinf(problem.seconds), problem.devices, places)
            now = oracle.cost(tuple(places.tolist()))
            while not oracle.over:
                after = moves(problem, places)
                oracle.priced(after.size - len(places))
                block, place = np.unravel_index(int(after.argmin()), after.shape)
                if after[block, place] >= now * (1 - _LEAST):
                    break
                now = float(after[block, place])
                places[block] = place
                oracle.offer(tuple(places.tolist()), problem.cost(tuple(places.tolist())))
        return None


def moves(problem: Placement, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """(blocks, places) s: the load of the fullest place when one block goes there; infinite where it is now or cannot be."""
    count, spots = len(places), problem.devices + problem.hosts
    rows = np.arange(count)
    counts = problem.counts(places)
    all_of_it = problem.meets[:, None]
    cut = (counts > 0) & (counts < all_of_it)
    more = (counts + 1 < all_of_it).astype(float) - cut
    less = (counts - 1 > 0).astype(float) - cut
    own = problem.own_seconds
    gains = problem.members @ (more * problem.prices[:, None])
    losses = problem.members @ (less * problem.prices[:, None])
    gains[:, problem.devices :] = losses[:, problem.devices :] = 0.0
    loads = problem.loads(tuple(places.tolist()))
    after = np.repeat(loads[None, None, :], count, axis=0).repeat(spots, axis=1)  # (block, goes to, load of)
    after[rows, :, places] += losses[rows, places][:, None] - own[rows, places][:, None]
    for place in range(spots):
        after[rows, place, place] += gains[:, place] + own[:, place]
    fullest = after.max(axis=2)
    held = np.bincount(places, weights=problem.held, minlength=spots)
    too_full = held[None, : problem.devices] + problem.held[:, None] > problem.memory
    fullest[:, : problem.devices][too_full] = np.inf
    fullest[rows, places] = np.inf
    return np.asarray(fullest)
