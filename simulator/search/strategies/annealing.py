"""Simulated annealing: from a plan to one that differs in one field; worse ones are taken with a chance that falls.

A plan that does not fit counts as much worse as it lacks memory.  Temperatures fall from a half to a thousandth of the objective.
"""

from __future__ import annotations

import math
import random

from simulator.search.candidate import Candidate
from simulator.search.run import Run
from simulator.search.space import Point
from simulator.search.strategies.base import Strategy

__all__ = ["Annealing"]

_HOT, _COLD = 0.5, 1e-3
_STARTS = 200


class Annealing(Strategy):
    """One chain, one field at a time."""

    name = "annealing"
    aliases = ("simulated_annealing",)
    source = "Kirkpatrick, Gelatt and Vecchi, Science 220 (1983)"
    proves = "nothing: other plans may be better"
    draws = True

    def search(self, run: Run, tries: int, seed: int) -> None:
        """See `Strategy.search`."""
        chance = random.Random(seed)
        here = self._start(run, chance)
        known: dict[int, Candidate | None] = dict(run.candidates)
        step = 0
        while here is not None and step < tries and not run.over:
            temperature = _HOT * (_COLD / _HOT) ** (step / max(1, tries - 1))
            step += 1
            point = self._neighbour(run, here.point, chance)
            if point.number not in known:
                looked = list(run.looks([point.number]))
                made = run.simulate(looked) if looked else []
                known[point.number] = made[0] if made else None
            there = known[point.number]
            if there is None:
                continue
            worse = math.log(run.weighed(there) / run.weighed(here))
            if worse <= 0 or chance.random() < math.exp(-worse / temperature):
                here = there
        run.complete = not run.over

    def _start(self, run: Run, chance: random.Random) -> Candidate | None:
        """The first of some drawn plans that can be."""
        size = run.space.size
        for number in chance.sample(range(size), min(size, _STARTS)):
            looked = list(run.looks([number]))
            made = run.simulate(looked) if looked else []
            if made:
                return made[0]
        return None

    def _neighbour(self, run: Run, point: Point, chance: random.Random) -> Point:
        fields = [field for field, values in run.space.ranges.items() if len(values) > 1]
        if not fields:
            return point
        field = chance.choice(fields)
        others = [value for value in run.space.ranges[field] if value != point.values[field]]
        values = {**point.values, field: chance.choice(others)}
        return Point(run.space.number(values), values)
