"""Grid: every plan of the space is simulated, in order."""

from __future__ import annotations

import itertools

from simulator.search.run import BATCH, Run
from simulator.search.strategies.base import Strategy

__all__ = ["Grid"]


class Grid(Strategy):
    """All plans."""

    name = "grid"
    aliases = ("brute_force", "exhaustive")
    source = "every combination"
    proves = "no plan of the space that fits is better"
    exact = True

    def search(self, run: Run, tries: int, seed: int) -> None:
        """See `Strategy.search`."""
        looked = run.looks(range(run.space.size), every=True)
        while some := list(itertools.islice(looked, BATCH)):
            run.simulate(some)
        run.complete = not run.over
