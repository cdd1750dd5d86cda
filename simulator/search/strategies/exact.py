"""Exact: plans in order of what they take at least, until no plan left can be among the best.

The bound of a plan (`search/bounds.py`) is never above what `simulate()` says of it.  Once the bound of the next plan is above the
last of the best plans asked for, all plans behind it are too, and the answer is proven.  Before anything else it goes downhill from a
sample: the better the best plan known, the fewer others have to be looked at closely.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np

from simulator.search.candidate import Looked
from simulator.search.run import BATCH, Run
from simulator.search.strategies.base import Strategy
from simulator.search.strategies.descent import descend

__all__ = ["Exact"]

_TOGETHER = 512
"""Plans that are looked at before the best of them are simulated."""
_EARLY = 2
"""How many these are."""
_SAMPLE = 256
"""Plans from all over the space from the best of which it goes downhill before anything else."""
_DOWN = 24
"""Plans that are simulated on the way down."""


class Exact(Strategy):
    """Best first, by bounds."""

    name = "exact"
    aliases: ClassVar[tuple[str, ...]] = ("best_first", "branch_and_bound")
    source = "Land and Doig 1960, branch and bound, with plans as leaves"
    proves = "no plan of the space that fits is better"
    exact = True

    def search(self, run: Run, tries: int, seed: int) -> None:
        """See `Strategy.search`."""
        descend(run, list(run.looks(itertools.islice(run.spread, min(_SAMPLE, run.space.size // 64)))), _DOWN)
        looks = run.looks(run.promising(run.numbers))
        while some := sorted(itertools.islice(looks, _TOGETHER), key=Looked.order):
            early = [one for one in some[:_EARLY] if run.cut is None or one.bound <= run.cut]
            run.simulate(early)  # something to go on with, should time run out before all are looked at
        if run.over:
            return
        left = run.left
        bounds = run.ledger.least(left)
        order = np.argsort(bounds, kind="stable")
        left, bounds, place = left[order], bounds[order], 0
        while place < len(left):
            if run.over:
                return
            behind = len(left) if run.cut is None else int(np.searchsorted(bounds, run.cut, side="right"))
            some = left[place : min(place + BATCH, behind)].tolist()
            if not some:
                run.ledger.dispose(left[place:])
                break
            run.simulate([run.looked(number) for number in some])
            place += len(some)
        run.complete = True
