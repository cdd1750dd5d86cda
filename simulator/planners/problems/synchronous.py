"""Stages of a pipeline that drains at the end of every step, each on its own number of devices: Alpa's outer problem (OSDI 2022).

With B microbatches and stages of t_i seconds per microbatch a step takes

    sum of t_i + (B - 1) max of t_i

for the first microbatch goes through all stages, and behind it the slowest sets the pace.  t_i are what the graph says of one microbatch,
divided over the stage's replicas, its message, and a B-th of the all_reduce of its weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.planners.problems.flushed import Flushed, make_flushed
from simulator.planners.problems.pipeline import Level, Stage
from simulator.report.table import Section
from simulator.units import show
from simulator.workload.cost_graph import CostGraph

__all__ = ["Synchronous", "make_synchronous"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Synchronous(Flushed):
    """A pipeline on one level of the network, by the time of a step."""

    name: ClassVar[str] = "synchronous"

    def stage_seconds(self, begin: Any, end: Any, replicas: int) -> Any:
        """Return s per microbatch of a stage between two ideals on so many devices."""
        weights = self.weights[end] - self.weights[begin]
        synchronised = 4 * (replicas - 1) / replicas * weights / self.levels[0].bandwidth / self.microbatches
        message = np.where(np.asarray(begin) > 0, self.message(0, begin), 0.0)
        return (self.work[end] - self.work[begin]) / replicas + synchronised + message

    @property
    def data_parallel(self) -> float:
        """s per step of one stage on all devices."""
        return self.microbatches * float(self.stage_seconds(0, len(self.states) - 1, self.devices))

    def seconds_of(self, plan: tuple[Stage, ...]) -> NDArray[np.float64]:
        """(stages,) s per microbatch of each."""
        begins = [0, *(stage.end for stage in plan)]
        return np.array(
            [float(self.stage_seconds(a, one.end, one.replicas)) for a, one in zip(begins, plan, strict=False)]
        )

    def _pace(self, stages: tuple[Stage, ...], begin: int, level: int) -> float:
        seconds = self.seconds_of(stages)
        return float(seconds.sum() + (self.microbatches - 1) * seconds.max())

    def described(self, plan: tuple[Stage, ...]) -> Section:
        """See `Problem.described`."""
        found = super().described(plan)
        seconds = self.seconds_of(plan)
        filled = float(seconds.sum() - seconds.max())
        line = f"{show(filled, 's')} of a step to fill and drain, {self.microbatches} microbatches at {show(float(seconds.max()), 's')}"
        return replace(found, lines=(*found.lines, line))


def make_synchronous(graph: CostGraph, level: Level, microbatches: int, transfers: bool = True) -> Synchronous:
    """Return the problem on one level of a network; as `make_flushed`."""
    return make_flushed(Synchronous, graph, (level,), microbatches, transfers)
