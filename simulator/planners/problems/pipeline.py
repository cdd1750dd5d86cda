"""Stages of a pipeline, each on its own number of devices, level by level of a network: PipeDream's problem (SOSP 2019).

The graph is cut into a chain of stages.  At each level of the network so many *members* (devices of a server, servers of a cluster) share a
bandwidth; a stage on m of them takes turns with minibatches, so its time per minibatch is

    (what one member takes + 4 (m - 1) / m |w| / B / members below) / m

where |w| are the bytes of its weights, sent and received by an all_reduce, and what a member takes is its work or, above the lowest level,
the pace of a pipeline of the same kind inside.  The pipeline goes at the pace of its slowest stage and of its messages, 2 a / B for an
activation and its gradient of a bytes each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SpecError
from simulator.planners.problems.cut import Cut
from simulator.report.table import Section, Table, set_options
from simulator.schedules import SCHEDULES
from simulator.units import show
from simulator.workload.cost_graph import CostGraph

__all__ = ["Level", "Pipeline", "Stage", "make_pipeline"]


class Level(NamedTuple):
    """A level of the network.

    Args:
        members: devices, or groups of the level below, that meet there.
        bandwidth: B/s of each of them.
    """

    members: int
    bandwidth: float


class Stage(NamedTuple):
    """A stage at one level of the network.

    Args:
        end: the ideal up to which it goes; it begins where the one before it ends.
        replicas: members that take turns.
        inside: stages of the level below in each of them; none at the lowest.
    """

    end: int
    replicas: int
    inside: tuple[Stage, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pipeline(Cut[tuple[Stage, ...]]):
    """Stages and replicas of a graph on a network of levels.

    Args:
        graph: without its inputs.
        levels: the lowest first.
        transfers: whether messages between stages bound the pace; the authors' optimizer leaves them out.
        inputs: nodes in front of the graph that were left out of it; None = some elsewhere.
    """

    levels: tuple[Level, ...]
    transfers: bool = True
    inputs: int | None = 0
    name: ClassVar[str] = "pipeline"
    schedule: ClassVar[str] = "pipedream"
    """Of the plan that a pipeline is."""
    objective: ClassVar[str] = "time per minibatch"
    most_states: ClassVar[int] = 2_000
    """The dynamic programme's work grows with their third power."""
    cut: ClassVar[str] = "a pipeline is"
    instead: ClassVar[str] = "a graph whose branches are put together, or --problem placement"

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """(states,) s of the forwards and backwards of each ideal."""
        return np.asarray(self.states @ np.array([node.forward + node.backward for node in self.graph.nodes]))

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """(states,) B of the weights of each ideal."""
        return np.asarray(self.states @ np.array([node.parameters for node in self.graph.nodes]))

    @cached_property
    def outputs(self) -> NDArray[np.float64]:
        """(states,) B of outputs in each ideal that are read outside it."""
        sizes = np.array([node.activation for node in self.graph.nodes])
        out = np.zeros(len(self.states))
        for node, readers in enumerate(self.graph.readers):
            crosses = self.states[:, node] & ~self.states[:, list(readers)].all(axis=1)
            out += np.where(crosses, sizes[node], 0.0)
        return out

    @property
    def devices(self) -> int:
        """Of all levels together."""
        return math.prod(level.members for level in self.levels)

    @property
    def lower_bound(self) -> float:
        """All devices busy without a message."""
        return float(self.work[-1]) / self.devices

    def replicated(self, level: int, replicas: int, member: Any, weights: Any) -> Any:
        """Return s per minibatch of a stage whose members take `member` s and hold `weights` B, on so many of a level."""
        below = math.prod(one.members for one in self.levels[:level])
        synchronised = 4 * (replicas - 1) / replicas * weights / self.levels[level].bandwidth / below
        return (member + synchronised) / replicas

    def message(self, level: int, state: Any) -> Any:
        """Return s of what crosses the end of a stage at a level."""
        return self.transfers * 2 * self.outputs[state] / self.levels[level].bandwidth

    @property
    def one_device(self) -> float:
        """s per minibatch of all on one device."""
        return float(self.work[-1])

    @property
    def data_parallel(self) -> float:
        """s per minibatch of one stage on all devices."""
        seconds = float(self.work[-1])
        for number, level in enumerate(self.levels):
            seconds = self.replicated(number, level.members, seconds, float(self.weights[-1]))
        return seconds

    def price(self, plan: tuple[Stage, ...]) -> float:
        """See `Problem.price`."""
        return self._pace(plan, 0, len(self.levels) - 1)

    def _pace(self, stages: tuple[Stage, ...], begin: int, level: int) -> float:
        slowest = 0.0
        for number, stage in enumerate(stages):
            if level:
                member = self._pace(stage.inside, begin, level - 1)
            else:
                member = float(self.work[stage.end] - self.work[begin])
            weights = float(self.weights[stage.end] - self.weights[begin])
            seconds = self.replicated(level, stage.replicas, member, weights)
            slowest = max(slowest, seconds, float(self.message(level, begin)) if number else 0.0)
            begin = stage.end
        return slowest

    def broken(self, plan: tuple[Stage, ...]) -> str:
        """See `Problem.broken`."""

        def wrong(stages: tuple[Stage, ...], begin: int, end: int, level: int) -> str:
            members = self.levels[level].members
            used = sum(stage.replicas for stage in stages)
            if used != members or any(stage.replicas < 1 for stage in stages):
                return f"stages of level {level} have all {members} members, got {used}"
            for stage in stages:
                if not self.inside[begin, stage.end]:
                    return f"stages go on from ideal to larger ideal, but one goes from {begin} to {stage.end}"
                if bool(stage.inside) != bool(level):
                    return f"a stage of level {level} has {'stages' if level else 'no stages'} inside"
                deeper = wrong(stage.inside, begin, stage.end, level - 1) if level else ""
                if deeper:
                    return deeper
                begin = stage.end
            return "" if begin == end else f"stages of level {level} end at {end}, got {begin}"

        return wrong(plan, 0, len(self.states) - 1, len(self.levels) - 1)

    def every_plan(self) -> Iterator[tuple[Stage, ...]]:
        """See `Problem.every_plan`."""

        def chains(begin: int, end: int, members: int, level: int) -> Iterator[tuple[Stage, ...]]:
            if begin == end and not members:
                yield ()
            if begin == end or not members:
                return
            for middle in range(begin + 1, end + 1):
                if self.inside[begin, middle] and (middle == end or self.inside[middle, end]):
                    for replicas in range(1, members + 1):
                        below = (
                            chains(begin, middle, self.levels[level - 1].members, level - 1) if level else iter([()])
                        )
                        for inside in below:
                            for rest in chains(middle, end, members - replicas, level):
                                yield (Stage(middle, replicas, inside), *rest)

        yield from chains(0, len(self.states) - 1, self.levels[-1].members, len(self.levels) - 1)

    def flat(self, plan: tuple[Stage, ...]) -> list[tuple[int, int, int]]:
        """(begin, end, replicas) of every stage of devices."""

        def leaves(stages: tuple[Stage, ...], begin: int, times: int) -> Iterator[tuple[int, int, int]]:
            for stage in stages:
                if stage.inside:
                    yield from leaves(stage.inside, begin, times * stage.replicas)
                else:
                    yield begin, stage.end, times * stage.replicas
                begin = stage.end

        return list(leaves(plan, 0, 1))

    def settings(self, plan: tuple[Stage, ...]) -> tuple[str, ...]:
        """Return the pipeline as settings of a plan for the graph's model (`dtsim import graph`), whose first and last node are its ends.

        () where a stage is no run of its layers, in the order in which the model has them.
        """
        flat = self.flat(plan)
        first = self.states[[end for _, end, _ in flat]][:, list(self.graph.order)]  # (stages, nodes in their order)
        counts = first.sum(axis=1)
        runs = (first == (np.arange(first.shape[1]) < counts[:, None])).all()
        if self.inputs is None or len(flat) < 2 or not runs:
            return ()
        layers = np.diff(counts, prepend=0)
        layers[0] += self.inputs - 1
        layers[-1] -= 1
        stages = [f"{{ranks = {n}, layers = {held}}}" for (_, _, n), held in zip(flat, layers.tolist(), strict=True)]
        return f"plan.schedule={self.schedule}", f"plan.stages=[{', '.join(stages)}]"

    def described(self, plan: tuple[Stage, ...]) -> Section:
        """See `Problem.described`: a row per stage of devices."""
        rows = tuple(
            (
                str(number),
                str(int(self.states[end].sum() - self.states[begin].sum())),
                str(replicas),
                show(float(self.work[end] - self.work[begin]), "s"),
                show(float(self.weights[end] - self.weights[begin]), "B"),
                show(float(self.outputs[end]), "B"),
            )
            for number, (begin, end, replicas) in enumerate(self.flat(plan))
        )
        one, pace = self.one_device, self.cost(plan)
        return Section(
            title="the pipeline (" + "-".join(str(replicas) for _, _, replicas in self.flat(plan)) + ")",
            lines=(
                f"{one / pace:.3g} times one device, {self.data_parallel / pace:.3g} times data parallelism on all {self.devices}",
            ),
            table=Table(headings=("stage", "nodes", "replicas", "work", "weights", "sends"), rows=rows),
            below=self._run_by(plan),
        )

    def _run_by(self, plan: tuple[Stage, ...]) -> tuple[str, ...]:
        """How the simulator runs it."""
        settings = set_options(self.settings(plan))
        if not settings:
            return ()
        made = f"dtsim import graph {self.graph.name} --images N -o model.toml"
        sizes = "--set plan.microbatch_size=N --set workload.global_batch_size=BATCH"
        turns = math.lcm(*(replicas for _, _, replicas in self.flat(plan)))
        batch = (
            f"N: images of the measured minibatch; BATCH: a multiple of {turns} x N, for replicas of a stage take minibatches in turn"
            if SCHEDULES.get(self.schedule).deals
            else f"N: images of the measured microbatch, a multiple of {turns}, for replicas of a stage divide it; BATCH: a multiple of N"
        )
        return (
            f"as a plan: {made}; dtsim run --model model.toml --cluster C {sizes} {settings}",
            batch,
        )

    def to_dict(self, plan: tuple[Stage, ...]) -> dict[str, Any]:
        """See `Problem.to_dict`."""
        pace = self.cost(plan)
        return {
            "over_one_device": self.one_device / pace,
            "over_data_parallel": self.data_parallel / pace,
            "settings": list(self.settings(plan)),
            "stages": [
                {
                    "replicas": replicas,
                    "work": float(self.work[end] - self.work[begin]),
                    "weights": float(self.weights[end] - self.weights[begin]),
                    "nodes": [
                        self.graph.nodes[node].name
                        for node in np.flatnonzero(self.states[end] & ~self.states[begin]).tolist()
                    ],
                }
                for begin, end, replicas in self.flat(plan)
            ],
        }


def make_pipeline(graph: CostGraph, levels: tuple[Level, ...], transfers: bool = True) -> Pipeline:
    """Return the problem of cutting a graph into stages.

    Nodes that read nothing, have no weights and no backward are inputs: where they stand is not chosen, and their time is not the
    pipeline's.  Nodes that take no time, have no weights and are read by nobody stand anywhere.

    Args:
        graph: with bytes on its edges.
        levels: of the network, the lowest first.
        transfers: see `Pipeline`.

    Raises:
        SpecError: there are no levels, a level is empty, or the graph's nodes go one way only or lack bytes.
    """
    if not levels or any(level.members < 1 or not level.bandwidth > 0 for level in levels):
        raise SpecError("a network has one level or more, each of 1 member or more with a bandwidth above 0 B/s")
    graph.refuse_ways()
    if any(node.passes_back for node in graph.nodes) or any(edge.seconds is not None for edge in graph.edges):
        raise SpecError(
            f"graph {graph.name!r} has nodes for backwards, or seconds on its edges; a pipeline is cut from nodes with both times "
            "and bytes. Way out: --problem placement"
        )
    idle = [n for n, one in enumerate(graph.nodes) if not (graph.sources[n] or one.parameters or one.backward)]
    found = graph
    while idle and len(idle) < len(found.nodes):
        found = found.without(idle)
        idle = [
            n
            for n, node in enumerate(found.nodes)
            if not (found.readers[n] or node.forward or node.backward or node.parameters)
        ]
    if idle:
        raise SpecError(f"graph {graph.name!r} has inputs and nodes without work only")
    return Pipeline(graph=found, levels=levels, transfers=transfers, inputs=_inputs(graph, found))


def _inputs(graph: CostGraph, found: CostGraph) -> int | None:
    """Return how many nodes a graph has in front of what was kept of it; None where others are missing, too."""
    inputs = len(graph.nodes) - len(found.nodes)
    kept = [graph.nodes[node] for node in graph.order[inputs:]]
    return inputs if kept == [found.nodes[node] for node in found.order] else None
