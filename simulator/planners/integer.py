"""Integer programme: any placement, contiguous or not, with a proof of how far from the best it is.

x of a block on a place is 0 or 1; an output is paid by a place when some but not all of its blocks are there; the load of every place is
at most T, and T is least (arXiv 2006.16423, its programme for throughput without contiguity).  HiGHS solves it, through scipy.  Devices
are alike, so block n goes to one of the first n + 1.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from simulator.planners.base import Oracle, Planner
from simulator.planners.ideals import best_in_rows, without_idle
from simulator.planners.problems.placement import Assignment, Placement

__all__ = ["Integer"]

Entry = tuple[Any, Any, Any]
"""Rows, columns and values of a part of a matrix."""
_GAP = 1e-6
"""Part of the bound at which the solver stops."""


class Integer(Planner[Assignment]):
    """Mixed integer programme, begun below the best cuts of four orders."""

    name = "integer"
    aliases: ClassVar[tuple[str, ...]] = ("ip", "milp")
    source = "arXiv 2006.16423; Huangfu and Hall 2018, HiGHS"
    solves = Placement
    best_of = "all placements"

    def covers(self, problem: Placement, plan: Assignment) -> bool:
        """See `Planner.covers`."""
        return True

    def plan(self, problem: Placement, oracle: Oracle[Assignment], seed: int) -> float | None:
        """See `Planner.plan`."""
        small, block_of = without_idle(problem)
        best_in_rows(small, oracle, block_of)
        known = oracle.least
        rows = _Rows(small, known)
        answer = milp(
            c=rows.objective,
            constraints=rows.constraints,
            bounds=rows.bounds,
            integrality=rows.integral,
            options={"time_limit": max(oracle.budget.seconds - oracle.seconds, 0.1), "mip_rel_gap": _GAP},
        )
        oracle.priced(int(getattr(answer, "mip_node_count", 0) or 0))
        if answer.x is not None:
            places = rows.places(answer.x)
            oracle.cost(tuple(places[block] for block in block_of.tolist()))
        if answer.status == 2:  # nothing is better than what was known
            return float(known)
        bound = getattr(answer, "mip_dual_bound", None)
        return None if bound is None else float(bound) * rows.scale * (1 - _GAP)


class _Rows:
    """The programme's columns: x of block and place, the paid outputs of every device, and T."""

    def __init__(self, problem: Placement, known: float) -> None:
        self.problem = problem
        self.scale = problem.lower_bound or 1.0
        blocks, self.spots = len(problem.blocks), problem.devices + problem.hosts
        outputs = len(problem.outputs)
        self.paid = blocks * self.spots
        self.top = self.paid + outputs * problem.devices
        self.objective = np.zeros(self.top + 1)
        self.objective[self.top] = 1.0
        self.integral = np.zeros(self.top + 1)
        self.integral[: self.paid] = 1
        upper = np.ones(self.top + 1)
        upper[self.top] = known / self.scale
        for block in range(blocks):
            for place in range(self.spots):
                seconds = problem.seconds if place < problem.devices else problem.host_seconds
                if block < place < problem.devices or np.isinf(seconds[block]):
                    upper[block * self.spots + place] = 0.0
        self.bounds = Bounds(np.zeros(self.top + 1), upper)
        self.constraints = [self._somewhere(), self._cuts(), self._loads(), self._memory()]

    def _somewhere(self) -> LinearConstraint:
        """Every block has one place."""
        x = np.arange(self.paid)
        return self._rows([(x // self.spots, x, np.ones(self.paid))], len(self.problem.blocks), 1.0, 1.0)

    def _cuts(self) -> LinearConstraint:
        """An output is paid where maker and reader part: paid >= |x of maker - x of reader|."""
        entries: list[Entry] = []
        number = 0
        for output, (_, maker, meets) in enumerate(self.problem.outputs):
            for reader in sorted(meets - {maker}):
                for place in range(self.problem.devices):
                    paid = self.paid + output * self.problem.devices + place
                    a, b = maker * self.spots + place, reader * self.spots + place
                    for here, there in ((a, b), (b, a)):
                        entries.append(([number] * 3, [here, there, paid], [1.0, -1.0, -1.0]))
                        number += 1
        return self._rows(entries, number, -np.inf, 0.0)

    def _loads(self) -> LinearConstraint:
        """No place has more than T."""
        problem = self.problem
        entries: list[Entry] = []
        blocks = np.arange(len(problem.blocks))
        outputs = np.arange(len(problem.outputs))
        for place in range(self.spots):
            seconds = problem.seconds if place < problem.devices else problem.host_seconds
            own = np.where(np.isinf(seconds), 0.0, seconds) / self.scale
            entries.append(([place] * len(blocks), blocks * self.spots + place, own))
            if place < problem.devices:
                columns = self.paid + outputs * problem.devices + place
                entries.append(([place] * len(outputs), columns, problem.prices / self.scale))
            entries.append(([place], [self.top], [-1.0]))
        return self._rows(entries, self.spots, -np.inf, 0.0)

    def _memory(self) -> LinearConstraint:
        """No device holds more than it has."""
        problem = self.problem
        blocks = np.arange(len(problem.blocks))
        whole = max(float(problem.held.sum()), 1.0)
        entries: list[Entry] = [
            ([place] * len(blocks), blocks * self.spots + place, problem.held / whole)
            for place in range(problem.devices)
        ]
        return self._rows(entries, problem.devices, -np.inf, problem.memory / whole)

    def _rows(self, entries: list[Entry], count: int, low: float, high: float) -> LinearConstraint:
        rows = np.concatenate([np.asarray(one[0], np.int64) for one in entries] or [np.zeros(0, np.int64)])
        columns = np.concatenate([np.asarray(one[1], np.int64) for one in entries] or [np.zeros(0, np.int64)])
        values = np.concatenate([np.asarray(one[2], float) for one in entries] or [np.zeros(0)])
        matrix = coo_array((values, (rows, columns)), shape=(count, self.top + 1)).tocsr()
        return LinearConstraint(matrix, np.full(count, low), np.full(count, high))

    def places(self, x: NDArray[np.float64]) -> list[int]:
        """Place of every block in a solution."""
        shares = x[: self.paid].reshape(-1, self.spots)
        return [int(place) for place in shares.argmax(axis=1)]
