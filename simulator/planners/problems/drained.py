"""Stages of a pipeline that drains, with all_reduces that hide behind what drains: DAPPLE's problem (arXiv 2007.01045).

The pace is set by a pivot stage q, which runs M forwards and backwards; before it the first microbatch comes through the stages in front
of it, after it the last gradient goes back through them, and each reduces its gradients when its last backward is done:

    L = sum of F_a up to q  +  (M - 1)(F_q + B_q)  +  the longest, over s, of B_q + ... + B_s and the all_reduce of s

A message is a stage of its own, whose F and B are what it takes there and back, and which reduces nothing.  L is the most over all pivots
and all s in front of them, every one a chain of things that wait for each other; DAPPLE's planner takes one pivot, found by a rule.

Devices stand in a row, level by level of the network: a group is as quick as the lowest level that holds it.  Stages take them in this
order (DAPPLE's "append first"), or as PipeDream nests its stages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.planners.problems.flushed import Flushed, make_flushed
from simulator.planners.problems.pipeline import Level, Stage
from simulator.report.table import Section
from simulator.units import show
from simulator.workload.cost_graph import CostGraph

__all__ = ["Drained", "Link", "make_drained"]


class Link(NamedTuple):
    """A stage or a message, as one of a chain.

    Args:
        forward, backward: s of a microbatch.
        reduced: s of the all_reduce of its weights.
    """

    forward: float
    backward: float
    reduced: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Drained(Flushed):
    """A pipeline by the time of a step, gradients reduced at its end."""

    name: ClassVar[str] = "drained"

    @cached_property
    def forward(self) -> NDArray[np.float64]:
        """(states,) s of the forwards of each ideal."""
        return np.asarray(self.states @ np.array([node.forward for node in self.graph.nodes]))

    def bandwidth(self, first: int, last: int) -> float:
        """Return B/s of the lowest level that holds two devices."""
        size = 1
        for level in self.levels:
            size *= level.members
            if first // size == last // size:
                return level.bandwidth
        return self.levels[-1].bandwidth

    def stage(self, begin: Any, end: Any, replicas: int, bandwidth: float) -> tuple[Any, Any, Any]:
        """Return s of the forward, the backward and the all_reduce (a ring) of a stage between two ideals."""
        forward = (self.forward[end] - self.forward[begin]) / replicas
        both = (self.work[end] - self.work[begin]) / replicas
        reduced = 2 * (replicas - 1) / replicas * (self.weights[end] - self.weights[begin]) / bandwidth
        return forward, both - forward, reduced

    def sent(self, state: Any, bandwidth: float) -> Any:
        """Return s of what crosses the end of a stage, one way."""
        return self.transfers * self.outputs[state] / bandwidth

    def placed(self, plan: tuple[Stage, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
        """(begin, end, devices) of every stage."""

        def nested(stages: tuple[Stage, ...], begin: int, level: int, groups: tuple[int, ...]) -> Iterator[Any]:
            """Stages of a level in each of some groups, which begin at these devices."""
            size = math.prod(one.members for one in self.levels[:level])
            for stage in stages:
                members = tuple(first + size * number for first in groups for number in range(stage.replicas))
                if stage.inside:
                    yield from nested(stage.inside, begin, level - 1, members)
                else:
                    yield begin, stage.end, members
                groups = tuple(first + size * stage.replicas for first in groups)
                begin = stage.end

        return list(nested(plan, 0, len(self.levels) - 1 if any(stage.inside for stage in plan) else 0, (0,)))

    def chain(self, plan: tuple[Stage, ...]) -> list[Link]:
        """Stages and the messages between them."""
        found: list[Link] = []
        before: tuple[int, ...] = ()
        for begin, end, devices in self.placed(plan):
            if before:
                met = (*before, *devices)
                seconds = float(self.sent(begin, self.bandwidth(min(met), max(met))))
                found.append(Link(seconds, seconds))
            bandwidth = self.bandwidth(devices[0], devices[-1])
            found.append(Link(*map(float, self.stage(begin, end, len(devices), bandwidth))))
            before = devices
        return found

    def further(self, link: Any, way: Any, whole: Any) -> tuple[Any, Any]:
        """Return the two figures of a chain with one more link in front.

        Args:
            link: forward, backward and all_reduce.
            way: s from where the chain begins until its last gradient is back there, whatever is reduced.
            whole: the same with all that is reduced in it.
        """
        forward, backward, reduced = link
        own = self.microbatches * (forward + backward)
        there = forward + np.maximum(reduced + backward + way, whole)
        return np.maximum(own, forward + backward + way), np.maximum(own + reduced, there)

    def _pace(self, stages: tuple[Stage, ...], begin: int, level: int) -> float:
        way = whole = -math.inf
        for link in reversed(self.chain(stages)):
            way, whole = self.further(link, way, whole)
        return float(whole)

    def broken(self, plan: tuple[Stage, ...]) -> str:
        """See `Problem.broken`."""
        if any(stage.inside for stage in plan):
            return super().broken(plan)
        used = sum(stage.replicas for stage in plan)
        if used != self.devices or any(stage.replicas < 1 for stage in plan):
            return f"stages have all {self.devices} devices, got {used}"
        ends = [0, *(stage.end for stage in plan)]
        if ends[-1] != len(self.states) - 1 or not all(self.inside[a, b] for a, b in itertools.pairwise(ends)):
            return f"stages go on from ideal to larger ideal up to {len(self.states) - 1}, got {ends}"
        return ""

    def every_plan(self) -> Iterator[tuple[Stage, ...]]:
        """See `Problem.every_plan`: those on devices in a row, then those that nest."""

        def chains(begin: int, devices: int) -> Iterator[tuple[Stage, ...]]:
            if begin == len(self.states) - 1 and not devices:
                yield ()
            for end in np.flatnonzero(self.inside[begin]).tolist():
                for replicas in range(1, devices + 1):
                    for rest in chains(end, devices - replicas):
                        yield (Stage(end, replicas, ()), *rest)

        yield from chains(0, self.devices)
        if len(self.levels) > 1:
            yield from super().every_plan()

    @property
    def data_parallel(self) -> float:
        """s per step of one stage on all devices."""
        return self._pace((Stage(len(self.states) - 1, self.devices, ()),), 0, 0)

    def described(self, plan: tuple[Stage, ...]) -> Section:
        """See `Problem.described`."""
        found = super().described(plan)
        shown = ", ".join(_range(devices) for _, _, devices in self.placed(plan))
        pace = self.microbatches * max(link.forward + link.backward for link in self.chain(plan))
        line = f"{self.microbatches} microbatches take {show(pace, 's')} of the step, filling, draining and the all_reduces the rest"
        return replace(found, lines=(*found.lines, line, f"devices {shown}"))


def _range(devices: Iterable[int]) -> str:
    """Devices as ranges of numbers."""
    runs: list[list[int]] = []
    for one in devices:
        if runs and runs[-1][1] + 1 == one:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return " and ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def make_drained(graph: CostGraph, levels: tuple[Level, ...], microbatches: int, transfers: bool = True) -> Drained:
    """Return the problem on the levels of a network; as `make_flushed`."""
    return make_flushed(Drained, graph, levels, microbatches, transfers)
