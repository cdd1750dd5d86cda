"""Which way every node of a stage runs, so that it fits and takes least: a knapsack, by the price of a byte saved.

From the quickest way of every node on, each step goes to a way that needs less memory and adds least time per byte saved; steps are
taken, the cheapest first, until the stage fits (Dantzig 1957).  A part of the last step would suffice: with it the time is a bound under
every choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Steps", "choose", "steps_to_fit"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of every stage from its quickest ways, the cheapest per byte first.

    Args:
        fast, needs: (stages,) s and B with the quickest ways.
        longer, saves: (stages, steps) s that each adds and B that it saves.
        node, way: (stages, steps) whose way it changes, and to which.
        first: (stages, nodes) the quickest ways.
    """

    fast: Numbers
    needs: Numbers
    longer: Numbers
    saves: Numbers
    node: NDArray[np.int64]
    way: NDArray[np.int64]
    first: NDArray[np.int64]

    def taken(self, memory: float) -> tuple[NDArray[np.int64], Numbers, Numbers]:
        """Return (stages,) how many steps make it fit, its s with these, and a bound under its s; infinite where nothing does."""
        saved = np.cumsum(self.saves, axis=1)
        added = np.cumsum(self.longer, axis=1)
        much = self.needs - memory
        count = (saved < much[:, None]).sum(axis=1) + 1
        count = np.where(much <= 0, 0, count)
        steps = self.saves.shape[1]
        fits = count <= steps
        last = np.clip(count - 1, 0, max(steps - 1, 0))
        rows = np.arange(len(self.fast))
        if not steps:
            seconds = np.where(fits, self.fast, np.inf)
            return count, seconds, seconds
        whole = np.where(count > 0, added[rows, last], 0.0)
        spare = np.maximum(saved[rows, last] - much, 0.0)
        back = np.divide(
            spare * self.longer[rows, last],
            self.saves[rows, last],
            out=np.zeros(len(rows)),
            where=self.saves[rows, last] > 0,
        )
        part = np.where(count > 0, whole - back, 0.0)
        return count, np.where(fits, self.fast + whole, np.inf), np.where(fits, self.fast + part, np.inf)


def steps_to_fit(seconds: Numbers, needs: Numbers) -> Steps:
    """Return the steps of stages.

    Args:
        seconds: (stages, nodes, ways) s that each way adds; infinite = no such way, 0 everywhere = no member.
        needs: the same, in B.
    """
    stages, nodes, ways = seconds.shape
    now = np.lexsort((needs, seconds), axis=-1)[..., 0]
    first = now
    place = np.ogrid[:stages, :nodes]
    longer, saves, to = [], [], []
    for _ in range(ways - 1):
        at_seconds, at_needs = seconds[(*place, now)], needs[(*place, now)]
        with np.errstate(invalid="ignore"):
            more = seconds - at_seconds[..., None]
            less = at_needs[..., None] - needs
            price = np.where((less > 0) & np.isfinite(more), more / np.where(less > 0, less, 1.0), np.inf)
        best = np.lexsort((-less, price), axis=-1)[..., 0]
        there = np.isfinite(price[(*place, best)])
        longer.append(np.where(there, more[(*place, best)], 0.0))
        saves.append(np.where(there, less[(*place, best)], 0.0))
        to.append(best)
        now = np.where(there, best, now)
    fast, held = seconds[(*place, first)].sum(axis=1), needs[(*place, first)].sum(axis=1)
    if not longer:
        nothing = np.zeros((stages, 0))
        return Steps(fast, held, nothing, nothing, nothing.astype(np.int64), nothing.astype(np.int64), first)
    added, saved = np.concatenate(longer, axis=1), np.concatenate(saves, axis=1)
    changed = np.concatenate(to, axis=1)
    node = np.broadcast_to(np.tile(np.arange(nodes), ways - 1), added.shape)
    price = np.where(saved > 0, added / np.where(saved > 0, saved, 1.0), np.inf)
    order = np.argsort(price, axis=1, kind="stable")
    rows = np.arange(stages)[:, None]
    return Steps(fast, held, added[rows, order], saved[rows, order], node[rows, order], changed[rows, order], first)


def choose(steps: Steps, stage: int, count: int) -> NDArray[np.int64]:
    """Return (nodes,) the ways of a stage after its first `count` steps."""
    ways: NDArray[np.int64] = steps.first[stage].copy()
    for node, way in zip(steps.node[stage, :count].tolist(), steps.way[stage, :count].tolist(), strict=True):
        ways[node] = way
    return ways
