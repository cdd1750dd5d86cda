"""Stages of a pipeline that never drains, each with tensor and data degrees and a way to run every node: Piper's problem (NeurIPS 2021).

A stage on t x d devices takes, of every microbatch, a d-th of what its nodes take in the ways chosen (each on t devices) and of what
crosses its ends, there and back, and of the all_reduce of its weights a share:

    sum of (seconds + 2 (bytes of crossing edges + what gathers or scatters them) / B) / d  +  4 (d - 1) / d |w| / B / N

with N microbatches of a step and B the bandwidth of a device.  As in its authors' code the slowest stage sets the pace.  With replicas
summing up to s from a stage on to the last, ceil(s / d) microbatches are in flight on it: it holds so many times what a way keeps of one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SpecError
from simulator.planners.problems.cut import Cut
from simulator.report.table import Section, Table
from simulator.units import show
from simulator.workload.cost_graph import CostGraph, Machine

__all__ = ["Hybrid", "HybridStage", "Ways", "make_hybrid"]


class HybridStage(NamedTuple):
    """A stage.

    Args:
        end: the ideal up to which it goes; it begins where the one before it ends.
        tensor: devices that share every node.
        replicas: groups of so many devices that take turns with microbatches.
        ways: number of the way of each of its nodes, in the order of the graph's nodes.
    """

    end: int
    tensor: int
    replicas: int
    ways: tuple[int, ...]


Stages = tuple[HybridStage, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Ways:
    """The ways of all nodes for one tensor degree; where a node has fewer than another, the rest takes for ever.

    Args:
        numbers: (nodes, ways) of each among all ways of its node.
        seconds, parameters, kept, held: (nodes, ways) see `CostWay`.
        crossing: (nodes, ways, nodes) B that a node moves per microbatch when the other lies elsewhere.
    """

    numbers: NDArray[np.int64]
    seconds: NDArray[np.float64]
    parameters: NDArray[np.float64]
    kept: NDArray[np.float64]
    held: NDArray[np.float64]
    crossing: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Hybrid(Cut[Stages]):
    """Stages, degrees and ways.

    Args:
        graph: whose nodes have ways.
        devices: that may be used.
        memory: B of each.
        bandwidth: B/s of each.
        microbatches: of a step; replicas of a stage divide them.
    """

    devices: int
    memory: float
    bandwidth: float
    microbatches: int
    name: ClassVar[str] = "hybrid"
    objective: ClassVar[str] = "time per microbatch"
    most_states: ClassVar[int] = 1_000
    """Stages lie between pairs of them."""
    cut: ClassVar[str] = "stages of a pipeline with tensor parallelism are"
    instead: ClassVar[str] = "a graph whose branches are put together"

    @property
    def most_replicas(self) -> int:
        """That all stages may have together: as many microbatches are in flight on the first."""
        return min(self.devices, self.microbatches)

    @cached_property
    def degrees(self) -> tuple[tuple[int, int], ...]:
        """(tensor, replicas) that a stage may have."""
        return tuple(
            (tensor, replicas)
            for tensor in self.ways
            for replicas in range(1, self.most_replicas + 1)
            if not self.microbatches % replicas and tensor * replicas <= self.devices
        )

    @cached_property
    def ways(self) -> dict[int, Ways]:
        """Tensor degree -> the ways of all nodes."""
        nodes = self.graph.nodes
        return {
            tensor: self._ways(tensor)
            for tensor in sorted({way.tensor for node in nodes for way in node.ways})
            if tensor <= self.devices
        }

    def _ways(self, tensor: int) -> Ways:
        nodes = self.graph.nodes
        numbers = [[n for n, way in enumerate(node.ways) if way.tensor == tensor] for node in nodes]
        shape = len(nodes), max(map(len, numbers))
        found = Ways(
            numbers=np.full(shape, -1),
            seconds=np.full(shape, np.inf),
            parameters=np.zeros(shape),
            kept=np.zeros(shape),
            held=np.zeros(shape),
            crossing=np.zeros((*shape, len(nodes))),
        )
        into: list[list[tuple[int, float]]] = [[] for _ in nodes]
        out: list[list[tuple[int, float]]] = [[] for _ in nodes]
        for edge in self.graph.edges:
            into[edge.target].append((edge.source, edge.bytes))
            out[edge.source].append((edge.target, edge.bytes))
        for node, own in enumerate(numbers):
            for place, number in enumerate(own):
                way = nodes[node].ways[number]
                found.numbers[node, place] = number
                found.seconds[node, place], found.parameters[node, place] = way.seconds, way.parameters
                found.kept[node, place], found.held[node, place] = way.kept, way.held
                for edges, more in ((into[node], way.gathers), (out[node], way.scatters)):
                    for (other, size), extra in zip(edges, more, strict=True):
                        found.crossing[node, place, other] += 2 * (size + extra)
        return found

    def node_seconds(self, tensor: int, replicas: int, members: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return s per microbatch that every way of every node adds to its stage.

        Args:
            members: (..., nodes) of the stages.

        Returns:
            (..., nodes, ways); 0 where the node is no member.
        """
        ways = self.ways[tensor]
        crossing = np.einsum("vou,...u->...vo", ways.crossing, (~members).astype(float))
        shared = 4 * (replicas - 1) / replicas * ways.parameters / self.bandwidth / self.microbatches
        seconds = (ways.seconds + crossing / self.bandwidth) / replicas + shared
        return np.where(members[..., None], seconds, 0.0)

    @property
    def lower_bound(self) -> float:
        """All devices busy without a message, every node in the way that takes the least of all devices together."""
        least = (min((way.tensor * way.seconds for way in node.ways), default=0.0) for node in self.graph.nodes)
        return math.fsum(least) / self.devices

    def in_flight(self, plan: Stages) -> list[int]:
        """Microbatches that each stage keeps."""
        behind = itertools.accumulate(stage.replicas for stage in reversed(plan))
        pairs = zip(reversed(list(behind)), plan, strict=True)
        return [min(-(-s // stage.replicas), self.microbatches) for s, stage in pairs]

    def members(self, plan: Stages) -> list[NDArray[np.bool_]]:
        """Which nodes each stage has."""
        ends = (0, *(stage.end for stage in plan))
        return [self.states[end] & ~self.states[begin] for begin, end in itertools.pairwise(ends)]

    def figures(self, plan: Stages) -> list[tuple[float, float]]:
        """(s per microbatch, B that a device holds) of every stage."""
        found = []
        for stage, members, flying in zip(plan, self.members(plan), self.in_flight(plan), strict=True):
            ways = self.ways[stage.tensor]
            nodes = np.flatnonzero(members)
            chosen = [int(np.flatnonzero(ways.numbers[n] == way)[0]) for n, way in zip(nodes, stage.ways, strict=True)]
            seconds = self.node_seconds(stage.tensor, stage.replicas, members)[nodes, chosen]
            held = ways.kept[nodes, chosen] * flying + ways.held[nodes, chosen]
            found.append((math.fsum(seconds), math.fsum(held)))
        return found

    def price(self, plan: Stages) -> float:
        """See `Problem.price`."""
        return max(seconds for seconds, _ in self.figures(plan))

    def broken(self, plan: Stages) -> str:
        """See `Problem.broken`."""
        begin = 0
        for stage in plan:
            if not (0 <= stage.end < len(self.states) and self.inside[begin, stage.end]):
                return f"stages go on from ideal to larger ideal, but one goes from {begin} to {stage.end}"
            if stage.tensor not in self.ways or stage.replicas < 1 or self.microbatches % stage.replicas:
                return f"a stage has a tensor degree of {sorted(self.ways)} and replicas that divide {self.microbatches} microbatches"
            nodes = np.flatnonzero(self.states[stage.end] & ~self.states[begin])
            known = self.ways[stage.tensor].numbers
            if len(nodes) != len(stage.ways) or any(
                way not in known[n] or way < 0 for n, way in zip(nodes, stage.ways, strict=True)
            ):
                return f"a stage has a way for each of {len(nodes)} nodes, of those on {stage.tensor} devices"
            begin = stage.end
        if begin != len(self.states) - 1:
            return "stages end with the whole graph"
        used = sum(stage.tensor * stage.replicas for stage in plan)
        if used > self.devices or sum(stage.replicas for stage in plan) > self.most_replicas:
            return f"stages share {self.devices} devices and {self.microbatches} microbatches, but need {used} devices"
        for number, (_, held) in enumerate(self.figures(plan)):
            if held > self.memory:
                return f"a device has {show(self.memory, 'B')}, but one of stage {number} needs {show(held, 'B')}"
        return ""

    def every_plan(self) -> Iterator[Stages]:
        """See `Problem.every_plan`."""

        def chains(begin: int, devices: int) -> Iterator[Stages]:
            if begin == len(self.states) - 1:
                yield ()
                return
            for end in np.flatnonzero(self.inside[begin]).tolist():
                nodes = np.flatnonzero(self.states[end] & ~self.states[begin])
                for tensor, replicas in self.degrees:
                    if tensor * replicas > devices:
                        continue
                    choices = [[int(n) for n in self.ways[tensor].numbers[node] if n >= 0] for node in nodes]
                    for rest in chains(end, devices - tensor * replicas):
                        for ways in itertools.product(*choices):
                            yield (HybridStage(end, tensor, replicas, ways), *rest)

        yield from chains(0, self.devices)

    def described(self, plan: Stages) -> Section:
        """See `Problem.described`: a row per stage."""
        rows = []
        columns = zip(plan, self.members(plan), self.in_flight(plan), self.figures(plan), strict=True)
        for number, (stage, members, flying, (seconds, held)) in enumerate(columns):
            degrees = f"{stage.tensor} x {stage.replicas}"
            numbers = show(seconds, "s"), str(flying), show(held, "B")
            nodes = [self.graph.nodes[node] for node in np.flatnonzero(members)]
            kinds = Counter(node.ways[way].kind for node, way in zip(nodes, stage.ways, strict=True))
            said = "; ".join(f"{count}: {kind or 'as it is'}" for kind, count in kinds.items())
            rows.append((str(number), str(len(stage.ways)), degrees, *numbers, said))
        used = sum(stage.tensor * stage.replicas for stage in plan)
        headings = ("stage", "nodes", "tensor x replicas", "time", "in flight", "memory", "ways")
        return Section(
            title="the pipeline",
            lines=(f"{len(plan)} stage{'s' * (len(plan) > 1)} on {used} of {self.devices} devices",),
            table=Table(headings=headings, rows=tuple(rows), left=(6,)),
        )

    def to_dict(self, plan: Stages) -> dict[str, Any]:
        """See `Problem.to_dict`."""
        stages = []
        columns = zip(plan, self.members(plan), self.in_flight(plan), self.figures(plan), strict=True)
        for stage, members, flying, (seconds, held) in columns:
            nodes = [self.graph.nodes[node] for node in np.flatnonzero(members)]
            stages.append(
                {
                    "tensor": stage.tensor,
                    "replicas": stage.replicas,
                    "seconds": seconds,
                    "in_flight": flying,
                    "held": held,
                    "nodes": [
                        {"name": node.name, "way": node.ways[way].kind}
                        for node, way in zip(nodes, stage.ways, strict=True)
                    ],
                }
            )
        return {"devices": sum(stage.tensor * stage.replicas for stage in plan), "stages": stages}


def make_hybrid(
    graph: CostGraph,
    devices: int | None = None,
    memory: float | None = None,
    bandwidth: float | None = None,
    microbatches: int | None = None,
) -> Hybrid:
    """Return the problem of cutting a graph into stages with tensor and data degrees.

    Args:
        graph: whose nodes have ways to run them.
        devices, memory, bandwidth, microbatches: None = what the graph's file says.

    Raises:
        SpecError: nodes have no ways, or neither says what there is.
    """
    if not graph.has_ways:
        raise SpecError(
            f"graph {graph.name!r} does not say what its nodes take on several devices or with recomputation. "
            "Way out: --problem pipeline, or a graph that does, such as bert32a100"
        )
    machine = graph.machine or Machine(devices=0, hosts=0, memory=0.0)
    given: dict[str, float] = {}
    for option, value, said in (
        ("--devices", devices, machine.devices),
        ("--memory", memory, machine.memory),
        ("--bandwidth", bandwidth, machine.bandwidth),
        ("--microbatches", microbatches, machine.microbatches),
    ):
        found = said if value is None else value
        if not found or not found > 0:
            why = "the graph's file says nothing of it" if value is None else f"got {value:g}"
            raise SpecError(f"{option} of a pipeline is more than 0, {why}")
        given[option] = found
    return Hybrid(
        graph=graph,
        devices=int(given["--devices"]),
        memory=given["--memory"],
        bandwidth=given["--bandwidth"],
        microbatches=int(given["--microbatches"]),
    )
