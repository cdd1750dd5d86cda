"""Stages for a pipeline that drains, by a dynamic programme over what a pair of figures says of the stages behind.

Of the stages from an ideal on, on all devices from one on, only two figures matter to those in front: how long until the last gradient is
back, and the same with all that is reduced on the way (`Drained.further`).  Chains that are worse in both are dropped, so the programme
loses nothing; DAPPLE's keeps one chain and one pivot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.drained import Drained
from simulator.planners.problems.pipeline import Stage

__all__ = ["Dapple"]

Numbers = NDArray[np.float64]


class Dapple(Planner[tuple[Stage, ...]]):
    """The best stages on devices in a row."""

    name = "dapple"
    source = "Fan et al., arXiv 2007.01045; AlibabaPAI/DAPPLE"
    solves = Drained
    best_of = "stages on devices in a row"

    def covers(self, problem: Drained, plan: tuple[Stage, ...]) -> bool:
        """See `Planner.covers`."""
        return not any(stage.inside for stage in plan)

    def plan(self, problem: Drained, oracle: Oracle[tuple[Stage, ...]], seed: int) -> float | None:
        """See `Planner.plan`; on one level of the network there are no other plans."""
        last, devices = len(problem.states) - 1, problem.devices
        oracle.cost((Stage(last, devices, ()),))
        chains: dict[tuple[int, int], list[_Chains]] = {}
        for first in reversed(range(devices)):
            for begin in reversed(range(last)):
                found = [_chains(problem, chains, begin, first, replicas) for replicas in range(1, devices - first + 1)]
                chains[begin, first] = [one for one in found if len(one.way)]
                oracle.priced(sum(len(one.way) for one in chains[begin, first]))
            if oracle.over:
                return None
        for one in chains[0, 0]:
            oracle.cost(_stages(chains, one, int(one.whole.argmin())))
        return oracle.least if len(problem.levels) == 1 else None


class _Chains(NamedTuple):
    """Chains that begin at an ideal and a device with a stage of so many replicas, none worse in both figures than another.

    Args:
        replicas: of the first stage.
        first: its first device.
        way, whole: see `Drained.further`.
        end: of the first stage.
        behind, place: which of the chains from there, and which of these.
    """

    replicas: int
    first: int
    way: Numbers
    whole: Numbers
    end: NDArray[np.int64]
    behind: NDArray[np.int64]
    place: NDArray[np.int64]


def _chains(
    problem: Drained, chains: dict[tuple[int, int], list[_Chains]], begin: int, first: int, replicas: int
) -> _Chains:
    last, after = len(problem.states) - 1, first + replicas
    bandwidth = problem.bandwidth(first, after - 1)
    ends = np.flatnonzero(problem.inside[begin])
    if after == problem.devices:
        ends = ends[ends == last]
    parts: list[tuple[Numbers, Numbers, int, int]] = []
    for end in ends.tolist():
        if end == last:
            if after == problem.devices:
                parts.append((np.full(1, -np.inf), np.full(1, -np.inf), end, -1))
            continue
        for number, one in enumerate(chains[end, after]):
            seconds = problem.sent(end, problem.bandwidth(first, after + one.replicas - 1))
            parts.append((*problem.further((seconds, seconds, 0.0), one.way, one.whole), end, number))
    sizes = [len(part[0]) for part in parts]
    none = np.zeros(0)
    way, whole = (np.concatenate([none, *(part[figure] for part in parts)]) for figure in (0, 1))
    to = np.repeat(np.array([part[2] for part in parts], np.int64), sizes)
    behind = np.repeat(np.array([part[3] for part in parts], np.int64), sizes)
    place = np.concatenate([none, *(np.arange(size) for size in sizes)]).astype(np.int64)
    way, whole = problem.further(problem.stage(begin, to, replicas, bandwidth), way, whole)
    order = np.lexsort((whole, way))
    before = np.minimum.accumulate(np.concatenate(([np.inf], whole[order])))[:-1]
    best = order[whole[order] < before]
    return _Chains(replicas, first, way[best], whole[best], to[best], behind[best], place[best])


def _stages(chains: dict[tuple[int, int], list[_Chains]], one: _Chains, place: int) -> tuple[Stage, ...]:
    found = [Stage(int(one.end[place]), one.replicas, ())]
    while one.behind[place] >= 0:
        behind = chains[int(one.end[place]), one.first + one.replicas][int(one.behind[place])]
        one, place = behind, int(one.place[place])
        found.append(Stage(int(one.end[place]), one.replicas, ()))
    return tuple(found)
