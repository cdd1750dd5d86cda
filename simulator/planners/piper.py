"""Piper's planner: a dynamic programme over ideals, devices and replicas, with a knapsack inside every stage.

Stages are put in front of one another from the last on.  For a pace that no stage may exceed, an ideal that stages have reached keeps the
pairs of (replicas so far, devices so far) of which none is better in both, since fewer replicas behind keep fewer microbatches in flight;
the best pace is the least with which the front of the empty ideal is not empty.  The authors fill a table of all devices and replicas
instead, to the same answer.  Ways inside a stage are chosen by the price of a byte saved, as theirs are (`way_choice`); the programme is
run once more with what no choice goes below, which bounds every pipeline.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.planners.base import Oracle, Planner
from simulator.planners.equal_stages import equal_pipelines
from simulator.planners.problems.hybrid import Hybrid, Stages
from simulator.planners.stage_table import StageTable

__all__ = ["Piper"]

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]


class Piper(Planner[Stages]):
    """The best stages and degrees, and nearly the best ways."""

    name = "piper"
    source = "Tarnawski, Narayanan and Phanishayee, NeurIPS 2021; msr-fiddle/piper"
    solves = Hybrid

    def plan(self, problem: Hybrid, oracle: Oracle[Stages], seed: int) -> float | None:
        """See `Planner.plan`."""
        for equal in equal_pipelines(problem):
            oracle.cost(equal)
        if not problem.degrees:
            return None
        known = oracle.least
        table = StageTable(problem, known)
        oracle.priced(table.priced)
        pace = _least(table, table.seconds, known, oracle)
        if pace is not None:
            oracle.cost(_stages(table, _fronts(table, table.seconds, pace)))
        if oracle.over or problem.drains:
            return None
        best = oracle.least
        below = _least(table, table.bounds, best, oracle)
        return best if below is None or oracle.over else min(below, best)


class _Front(NamedTuple):
    """Where a chain of stages may have come to: replicas and devices so far, and of each the stage put in front last."""

    replicas: Whole
    devices: Whole
    end: Whole
    place: Whole
    degrees: Whole


def _least(table: StageTable, seconds: list[Numbers], known: float, oracle: Oracle[Stages]) -> float | None:
    """The least pace below what is known with which there is a pipeline."""
    paces = np.unique(np.concatenate([one[one < known] for one in seconds] or [np.zeros(0)]))
    paces = paces[np.isfinite(paces)]
    low, high, found = 0, len(paces) - 1, None
    while low <= high and not oracle.over:
        middle = (low + high) // 2
        oracle.priced(1)
        if len(_fronts(table, seconds, float(paces[middle]))[0].devices):
            found, high = float(paces[middle]), middle - 1
        else:
            low = middle + 1
    return found


def _fronts(table: StageTable, seconds: list[Numbers], pace: float) -> list[_Front]:
    """Per ideal: the front of pipelines that begin there, no stage of which exceeds a pace."""
    problem = table.problem
    flying = [(one <= pace).sum(axis=0) for one in seconds]
    kept = [np.flatnonzero(count) for count in flying]
    pair = np.concatenate([rows[keep] for rows, keep in zip(table.rows, kept, strict=True)])
    degrees = np.repeat(np.arange(len(kept)), [len(keep) for keep in kept])
    most = np.concatenate([count[keep] for count, keep in zip(flying, kept, strict=True)])
    begin, end = table.pairs[pair].T
    order = np.lexsort((end, begin))
    begin, end, degrees, most = begin[order], end[order], degrees[order], most[order]
    tensor, replicas = np.array(problem.degrees).T[:, degrees]
    states = len(problem.states)
    none = np.zeros(0, np.int64)
    fronts = [_Front(none, none, none, none, none)] * states
    fronts[-1] = _Front(*(np.zeros(1, np.int64) for _ in range(5)))
    bounds = np.searchsorted(begin, np.arange(states + 1))
    for state in range(states - 2, -1, -1):
        ways = slice(bounds[state], bounds[state + 1])
        sizes = np.array([len(fronts[one].devices) for one in end[ways].tolist()], np.int64)
        if not sizes.sum():
            continue
        way = np.repeat(np.arange(ways.start, ways.stop), sizes)
        place = np.arange(len(way)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        behind = np.concatenate([fronts[one].replicas for one in end[ways].tolist()])
        used = np.concatenate([fronts[one].devices for one in end[ways].tolist()])
        total = behind + replicas[way]
        devices = used + (tensor * replicas)[way]
        fits = (total <= np.minimum(most[way] * replicas[way], problem.most_replicas)) & (devices <= problem.devices)
        total, devices, way, place = total[fits], devices[fits], way[fits], place[fits]
        best = np.lexsort((devices, total))
        least = np.minimum.accumulate(np.concatenate(([np.iinfo(np.int64).max], devices[best])))
        best = best[devices[best] < least[:-1]]
        fronts[state] = _Front(total[best], devices[best], end[way[best]], place[best], degrees[way[best]])
    return fronts


def _stages(table: StageTable, fronts: list[_Front]) -> Stages:
    """A pipeline of the least devices."""
    problem = table.problem
    state, place, found = 0, int(fronts[0].devices.argmin()), []
    numbers = {tuple(pair): number for number, pair in enumerate(table.pairs.tolist())}
    while state != len(problem.states) - 1:
        front = fronts[state]
        end, degrees = int(front.end[place]), int(front.degrees[place])
        flying = -(-int(front.replicas[place]) // problem.degrees[degrees][1])
        found.append(table.stage(degrees, numbers[state, end], flying))
        state, place = end, int(front.place[place])
    return tuple(found)
