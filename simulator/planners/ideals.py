"""Dynamic programme over ideals: the best contiguous placement.

An ideal is a set of blocks that holds whatever its members read.  A contiguous placement is a chain of ideals, each device having what one
adds to the one before, so the least load of the fullest device follows from ideal to ideal (arXiv 2006.16423).  Work grows
with pairs of ideals, of which graphs with many branches have too many; the best placement in a row of all blocks (`linearised`) is found
first, and pairs that would take longer than it are left out.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.errors import refuse
from simulator.planners.base import Oracle, Planner
from simulator.planners.down_sets import ideals_of
from simulator.planners.linear_order import in_rows
from simulator.planners.problems.placement import Assignment, Placement

__all__ = ["Ideals", "best_in_rows", "without_idle"]

_MOST_IDEALS = 60_000
"""As in the authors' code; pairs of so many already take minutes."""


class Ideals(Planner[Assignment]):
    """All contiguous placements, best first by dynamic programming."""

    name = "ideals"
    aliases: ClassVar[tuple[str, ...]] = ("dp", "dnn_partition")
    source = "Tarnawski, Phanishayee et al., NeurIPS 2020, arXiv 2006.16423"
    solves = Placement
    best_of = "contiguous placements"

    def covers(self, problem: Placement, plan: Assignment) -> bool:
        """See `Planner.covers`."""
        return problem.contiguous(plan)

    def plan(self, problem: Placement, oracle: Oracle[Assignment], seed: int) -> float | None:
        """See `Planner.plan`."""
        small, block_of = without_idle(problem)
        best_in_rows(small, oracle, block_of)
        best_chain(small, oracle, block_of)
        return None


def without_idle(problem: Placement) -> tuple[Placement, NDArray[np.int64]]:
    """Return the problem with blocks that take no time and have one neighbour put to that neighbour: nothing is lost.

    Where one device cannot hold everything, blocks that take memory stay.

    The second value is the new number of every old block.
    """
    label = np.arange(len(problem.blocks))
    while True:
        near: list[set[int]] = [set() for _ in problem.blocks]
        for a, b in problem.edges:
            near[a].add(b)
            near[b].add(a)
        for _, maker, meets in problem.outputs:
            for block in meets - {maker}:
                near[maker].add(block)
                near[block].add(maker)
        light = (problem.held == 0) | (problem.held.sum() <= problem.memory)
        idle = (problem.seconds == 0) & (problem.host_seconds == 0) & light
        pairs = [(block, next(iter(near[block]))) for block in np.flatnonzero(idle).tolist() if len(near[block]) == 1]
        if not pairs:
            return problem, label
        problem, new = problem.merged(pairs)
        label = new[label]


def best_in_rows(problem: Placement, oracle: Oracle[Assignment], block_of: NDArray[np.int64]) -> None:
    """Offer the best contiguous placements of all blocks in a row, as in `best_chain`."""
    for row in in_rows(problem):
        best_chain(row, oracle, block_of)


def best_chain(problem: Placement, oracle: Oracle[Assignment], block_of: NDArray[np.int64]) -> None:
    """Offer the best contiguous placement.

    Args:
        block_of: the block of `problem` in which each block of the oracle's problem is.

    Raises:
        PlanError: there are too many ideals.
    """
    ideals = _ideals(problem)
    table = _Table(problem, ideals, oracle.least)
    for number in range(1, len(ideals)):
        oracle.priced(table.extend(number))
        if oracle.over:
            return
    chain = table.chain()
    if chain is not None:
        oracle.cost(tuple(chain[block] for block in block_of.tolist()))


def _ideals(problem: Placement) -> NDArray[np.bool_]:
    """(ideals, blocks) the members of each, small ones first.

    Raises:
        PlanError: there are too many.
    """
    found = ideals_of(len(problem.blocks), problem.edges, _MOST_IDEALS)
    if found is None:
        refuse(
            f"a dynamic programme over ideals takes graphs of at most {_MOST_IDEALS:,} ideals",
            f"{problem.graph.name!r} with its {len(problem.blocks)} blocks has more",
            "--planner linearised",
        )
    return found


class _Table:
    """least[hosts, devices, ideal]: the load of the fullest when so many places hold the ideal."""

    def __init__(self, problem: Placement, ideals: NDArray[np.bool_], limit: float) -> None:
        self.problem, self.limit = problem, limit
        self.ideals = ideals
        numbers = ideals.astype(float)
        self.work, self.infeasible = _finite_sums(numbers, problem.seconds)
        self.host_work, self.host_infeasible = _finite_sums(numbers, problem.host_seconds)
        self.held = numbers @ problem.held
        self.counts = np.asarray((problem.members.T @ numbers.T).T, np.int16)
        pad = -len(problem.blocks) % 64
        packed = np.packbits(np.pad(ideals, ((0, 0), (0, pad))), axis=1)
        self.words = packed.view(np.uint64).reshape(len(ideals), -1)
        self.least = np.full((problem.hosts + 1, problem.devices + 1, len(ideals)), math.inf)
        self.least[:, :, 0] = 0.0
        self.before = np.zeros((*self.least.shape,), np.int32)
        self.on_host = np.zeros(self.least.shape, np.bool_)

    def extend(self, number: int) -> int:
        """Fill the column of an ideal from those of its subsets; return how many differences were priced."""
        problem, least = self.problem, self.least
        inside = self._subsets(number)
        load = self._load(number, inside)
        near = load <= self.limit
        onto, load = inside[near], load[near]
        hosted = np.where(
            self.host_infeasible[number] > self.host_infeasible[inside],
            math.inf,
            self.host_work[number] - self.host_work[inside],
        )
        kept = hosted <= self.limit
        host_onto, hosted = inside[kept], hosted[kept]
        for hosts in range(problem.hosts + 1):
            if len(onto):
                pace = np.maximum(least[hosts, :-1, onto].T, load)  # (devices, subsets)
                pick = pace.argmin(axis=1)
                least[hosts, 1:, number] = pace[np.arange(problem.devices), pick]
                self.before[hosts, 1:, number] = onto[pick]
            if hosts and len(host_onto):
                pace = np.maximum(least[hosts - 1, :, host_onto].T, hosted)
                pick = pace.argmin(axis=1)
                value = pace[np.arange(problem.devices + 1), pick]
                better = value < least[hosts, :, number]
                least[hosts, better, number] = value[better]
                self.before[hosts, better, number] = host_onto[pick][better]
                self.on_host[hosts, better, number] = True
        return len(inside)

    def _subsets(self, number: int) -> NDArray[np.int64]:
        """Ideals inside this one whose difference is short enough to matter."""
        room = self.limit * (1 + 1e-9)
        near = (self.work[:number] >= self.work[number] - room) | (
            self.host_work[:number] >= self.host_work[number] - room
        )
        candidates = np.flatnonzero(near)
        outside = ~self.words[number]
        return np.asarray(candidates[~(self.words[candidates] & outside).any(axis=1)])

    def _load(self, number: int, inside: NDArray[np.int64]) -> NDArray[np.float64]:
        """(subsets,) s of a device that has what the ideal has beyond each subset."""
        load = self.work[number] - self.work[inside]
        there = self.counts[number] - self.counts[inside]
        load = load + ((there > 0) & (there < self.problem.meets)) @ self.problem.prices
        too_large = self.held[number] - self.held[inside] > self.problem.memory
        return np.where(too_large | (self.infeasible[number] > self.infeasible[inside]), math.inf, load)

    def chain(self) -> list[int] | None:
        """Place of every block in the best chain; None when none was better than the limit."""
        hosts, devices, number = self.problem.hosts, self.problem.devices, len(self.ideals) - 1
        flat = self.least[:, :, number]
        hosts, devices = divmod(int(flat.argmin()), flat.shape[1])
        if math.isinf(flat[hosts, devices]):
            return None
        places = [0] * len(self.problem.blocks)
        while number:
            before = int(self.before[hosts, devices, number])
            host = bool(self.on_host[hosts, devices, number])
            place = self.problem.devices + hosts - 1 if host else devices - 1
            for block in np.flatnonzero(self.ideals[number] & ~self.ideals[before]).tolist():
                places[block] = place
            hosts, devices, number = hosts - host, devices - (not host), before
        return places


def _finite_sums(
    members: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of the finite values of each set, and how many infinite ones it has."""
    endless = np.isinf(values)
    return members @ np.where(endless, 0.0, values), members @ endless
