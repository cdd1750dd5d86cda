"""Stages on parts of a cluster, drained every step: Alpa's outer problem with what its inner programme found (OSDI 2022).

A way to run a node on so many devices is a division of its operations over a mesh of these (`CostWay.tensor`).  With B microbatches a
step takes

    sum of t_i + (B - 1) max of t_i

over the stages, and a stage keeps the microbatches of itself and of all behind it, at most B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from simulator.planners.problems.hybrid import Hybrid, HybridStage
from simulator.report.table import Section
from simulator.units import show

__all__ = ["Meshes"]

Stages = tuple[HybridStage, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Meshes(Hybrid):
    """Stages of one replica each, by the time of a step."""

    name: ClassVar[str] = "meshes"
    objective: ClassVar[str] = "time per step"
    drains: ClassVar[bool] = True

    @property
    def most_replicas(self) -> int:
        """Stages: one device each."""
        return self.devices

    @cached_property
    def degrees(self) -> tuple[tuple[int, int], ...]:
        """(devices of a mesh, 1) that a stage may have."""
        return tuple((tensor, 1) for tensor in self.ways)

    @property
    def lower_bound(self) -> float:
        """All devices busy without a message."""
        return self.microbatches * super().lower_bound

    def step(self, seconds: list[float]) -> float:
        """Return s of a step of stages that take so long for a microbatch."""
        return math.fsum(seconds) + (self.microbatches - 1) * max(seconds)

    def price(self, plan: Stages) -> float:
        """See `Problem.price`."""
        return self.step([seconds for seconds, _ in self.figures(plan)])

    def broken(self, plan: Stages) -> str:
        """See `Problem.broken`."""
        if any(stage.replicas != 1 for stage in plan):
            return "a stage is one mesh of devices, not several replicas"
        return super().broken(plan)

    def described(self, plan: Stages) -> Section:
        """See `Problem.described`."""
        found = super().described(plan)
        seconds = [one for one, _ in self.figures(plan)]
        rest = show(math.fsum(seconds) - max(seconds), "s")
        line = f"{self.microbatches} microbatches at {show(max(seconds), 's')}, {rest} to fill and drain"
        return replace(found, lines=(*found.lines, line))
