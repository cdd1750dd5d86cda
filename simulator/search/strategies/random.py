"""Random: plans drawn evenly, none twice."""

from __future__ import annotations

import itertools
import random

from simulator.search.run import BATCH, Run
from simulator.search.strategies.base import Strategy

__all__ = ["Random"]

_REFUSED = 50
"""Draws for every plan that is to be simulated: most spaces refuse most of their plans."""


class Random(Strategy):
    """Even draws without replacement."""

    name = "random"
    source = "Bergstra and Bengio, JMLR 13 (2012)"
    proves = "nothing: other plans may be better"
    draws = True

    def search(self, run: Run, tries: int, seed: int) -> None:
        """See `Strategy.search`."""
        chance = random.Random(seed)
        size = run.space.size
        numbers = chance.sample(range(size), min(size, tries * _REFUSED))
        looked = itertools.islice(run.looks(numbers), tries)
        while some := list(itertools.islice(looked, BATCH)):
            run.simulate(some)
        run.complete = not run.over
