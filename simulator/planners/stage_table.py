"""Seconds of all stages that a pipeline may have, by how many microbatches are in flight: a knapsack of ways for each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.planners.problems.hybrid import Hybrid, HybridStage
from simulator.planners.way_choice import Steps, choose, steps_to_fit

__all__ = ["StageTable"]

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]


class StageTable:
    """Seconds of all stages that may be quicker than what is known.

    Attributes:
        pairs: (pairs, 2) ideals between which stages lie.
        rows: per degrees of the problem: the pairs that are kept.
        seconds, bounds: per degrees: (microbatches in flight, rows) s with the ways chosen, and a bound under every choice; neither falls.
        priced: knapsacks.
    """

    def __init__(self, problem: Hybrid, known: float) -> None:
        self.problem = problem
        self.pairs = np.argwhere(problem.inside)
        self.members = problem.states[self.pairs[:, 1]] & ~problem.states[self.pairs[:, 0]]
        self.rows: list[Whole] = []
        self.seconds: list[Numbers] = []
        self.bounds: list[Numbers] = []
        self.priced = 0
        for tensor, replicas in problem.degrees:
            seconds = problem.node_seconds(tensor, replicas, self.members)
            rows = np.flatnonzero(seconds.min(axis=-1).sum(axis=-1) <= known)
            above, below = self._in_flight(tensor, replicas, rows, seconds[rows])
            self.rows.append(rows)
            self.seconds.append(np.minimum.accumulate(above[::-1])[::-1])
            self.bounds.append(below)

    def _in_flight(self, tensor: int, replicas: int, rows: Whole, seconds: Numbers) -> tuple[Numbers, Numbers]:
        """(microbatches in flight, rows) of stages, until nothing fits."""
        problem, ways = self.problem, self.problem.ways[tensor]
        most = -(-problem.most_replicas // replicas)
        above: list[Numbers] = []
        below: list[Numbers] = []
        quickest = seconds.argmin(axis=-1)
        place = np.arange(seconds.shape[1]), quickest
        fast = np.take_along_axis(seconds, quickest[..., None], axis=-1)[..., 0].sum(axis=1)
        kept, held = (np.where(self.members[rows], one[place], 0.0).sum(axis=1) for one in (ways.kept, ways.held))
        left = np.arange(len(rows))
        for flying in range(1, most + 1):
            if not len(left):
                break
            if flying > problem.microbatches:  # no more are in flight
                above.append(above[-1])
                below.append(below[-1])
                continue
            one, bound = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
            fits = kept[left] * flying + held[left] <= problem.memory
            one[left[fits]] = bound[left[fits]] = fast[left[fits]]
            some = left[~fits]
            if len(some):
                _, one[some], bound[some] = self.steps(tensor, rows[some], seconds[some], flying).taken(problem.memory)
            self.priced += len(left)
            left = np.flatnonzero(np.isfinite(one))
            above.append(one)
            below.append(bound)
        nothing = np.zeros((0, len(rows)))
        return (np.stack(above), np.stack(below)) if above else (nothing, nothing)

    def steps(self, tensor: int, rows: Whole, seconds: Numbers, flying: int) -> Steps:
        """Return the steps of the stages of some pairs with so many microbatches in flight."""
        ways = self.problem.ways[tensor]
        needs = np.where(
            self.members[rows][..., None], ways.kept * min(flying, self.problem.microbatches) + ways.held, 0.0
        )
        return steps_to_fit(seconds, needs)

    def stage(self, degrees: int, pair: int, flying: int) -> HybridStage:
        """Return a stage with the ways that its seconds are of.

        Args:
            degrees: number of its degrees; `pair`: of its ideals.
            flying: microbatches in flight; a choice that fits more of them may be quicker.
        """
        problem, (tensor, replicas) = self.problem, self.problem.degrees[degrees]
        rows = np.array([pair])
        seconds = self.seconds[degrees][:, np.searchsorted(self.rows[degrees], pair)]
        flying = int((seconds <= seconds[flying - 1]).sum())
        steps = self.steps(tensor, rows, problem.node_seconds(tensor, replicas, self.members[rows]), flying)
        ways = choose(steps, 0, int(steps.taken(problem.memory)[0][0]))
        nodes = np.flatnonzero(self.members[pair])
        chosen = tuple(problem.ways[tensor].numbers[nodes, ways[nodes]].tolist())
        return HybridStage(int(self.pairs[pair, 1]), tensor, replicas, chosen)
