"""Descent: from the best of a spread sample to the best plan around it, until none around is better; then from a further sample.

Around a plan are those that differ in one field, and those in which a power of two went from one degree to another.  Of these only plans
are simulated whose bound is below the best.  While none fits, it goes to where the least memory is lacking.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from simulator.search.candidate import Looked
from simulator.search.defaults import said_once
from simulator.search.run import Run
from simulator.search.space import DEGREES, Space
from simulator.search.strategies.base import Strategy

__all__ = ["Descent", "descend"]

_SAMPLE = 3
"""Plans of the sample whose bounds are found, for every plan that may be simulated."""
_BLOCKS = 3
"""Further samples, of one plan for every one that may be simulated, from which it goes down again."""
_TOGETHER = 6
"""Plans simulated before the best is looked for again."""


class Descent(Strategy):
    """Downhill, with bounds."""

    name = "descent"
    aliases = ("hill_climbing", "local_search")
    source = "Aarts and Lenstra, Local Search in Combinatorial Optimization (1997), chapter 1"
    proves = "nothing: plans that differ in more may be better"
    draws = True

    def search(self, run: Run, tries: int, seed: int) -> None:
        """See `Strategy.search`; the sample begins with the plan of number `seed` in its order."""
        looks = run.looks(itertools.islice(run.spread, seed % run.space.size, None))
        for block in (_SAMPLE, *(1 for _ in range(_BLOCKS))):
            looked = list(itertools.islice(looks, block * tries))
            descend(run, looked, tries)
        run.complete = not run.over


def descend(run: Run, looked: list[Looked], tries: int) -> None:
    """Simulate the promising of these, then of those around the best, until none is left.

    Args:
        tries: plans that are simulated at most.
    """
    been: set[int] = set()
    while not run.over and len(run.candidates) < tries:
        looked = [one for one in sorted(looked, key=Looked.order) if _promising(run, one)]
        if looked:
            run.simulate(looked[: min(_TOGETHER, tries - len(run.candidates))])
            continue
        here = _place(run)
        if here is None or here in been:
            break
        been.add(here)
        looked = list(run.looks(_around(run.space, here)))


def _promising(run: Run, one: Looked) -> bool:
    """Whether a plan is not simulated yet and may be the best."""
    if one.point.number in run.candidates or one.point.number in run.refused:
        return False
    return not run.best or one.bound < run.best[0].value(run.objective)


def _place(run: Run) -> int | None:
    """The best plan, or the one that lacks least memory."""
    if run.best:
        return run.best[0].point.number
    lacks = {n: c.peak_memory / c.capacity for n, c in run.candidates.items()} | dict(run.large)
    return min(lacks, key=lambda number: (lacks[number], number), default=None)


def _around(space: Space, number: int) -> Iterator[int]:
    """Plans that differ in one field, or by a power of two handed from one degree to another; each once."""
    here = space.at(number).values
    changes: list[dict[str, object]] = [
        {field: value} for field, values in space.ranges.items() for value in values if value != here[field]
    ]
    degrees = [field for field in space.ranges if field in DEGREES]
    for one, other in itertools.permutations(degrees, 2):
        for up in space.ranges[one]:
            down = here[one] * here[other] / up
            if up != here[one] and down in space.ranges[other]:
                changes.append({one: up, other: int(down)})
    for change in changes:
        yield space.number(said_once(space.ranges, {**here, **change}) if space.offered else {**here, **change})
