"""What every planner must keep, ours and other people's: a valid plan, a true price, a true bound, and what it says it proves.

`PlannerContract(planner).check_all()` raises an AssertionError that names the broken promise and the seed of the problem.  Problems are
small and drawn at random; all their plans are priced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from simulator.errors import PlanError
from simulator.planners.base import Planner, Problem
from simulator.planners.problems.drained import Drained
from simulator.planners.problems.hybrid import Hybrid, make_hybrid
from simulator.planners.problems.layouts import Along, Layouts
from simulator.planners.problems.meshes import Meshes
from simulator.planners.problems.pipeline import Level, Pipeline, make_pipeline
from simulator.planners.problems.placement import Placement, make_placement
from simulator.planners.problems.synchronous import Synchronous
from simulator.planners.problems.unlike_replicas import UnlikeReplicas
from simulator.workload.cost_graph import CostEdge, CostGraph, CostNode, CostWay, Machine

__all__ = [
    "SMALL_PROBLEMS",
    "PlannerContract",
    "small_graph",
    "small_hybrid",
    "small_layouts",
    "small_pipeline",
    "small_replicas",
]

_CLOSE = 1e-9


def small_graph(seed: int, most: int = 6) -> CostGraph:
    """Return a graph of some nodes with mates that go back, drawn at random, and a machine of two or three devices."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, most + 1))
    trains = bool(random.integers(2))
    nodes, edges = [], []
    for number in range(count):
        forward, host = (0.0 if random.random() < 0.2 else float(random.uniform(0.5, 3.0)) for _ in range(2))
        memory = float(random.uniform(1.0, 2.0))
        nodes.append(
            CostNode(name=f"f{number}", forward=forward, memory=memory, host=3 * host + forward, belongs_to=number)
        )
        for source in range(number):
            if random.random() < 0.4:
                edges.append((source, number, float(random.uniform(0.0, 1.0))))
    if trains:
        for number in range(count):
            nodes.append(CostNode(name=f"b{number}", backward=2.0, belongs_to=number, host=5.0, passes_back=True))
        edges += [(count + target, count + source, seconds) for source, target, seconds in tuple(edges)]
    one = {source: seconds for source, _, seconds in edges}
    return CostGraph(
        name=f"random {seed}",
        nodes=tuple(nodes),
        edges=tuple(CostEdge(source=source, target=target, seconds=one[source]) for source, target, _ in edges),
        machine=Machine(
            devices=int(random.integers(2, 4)), hosts=int(random.integers(2)), memory=float(random.uniform(4, 12))
        ),
    )


def small_pipeline(seed: int) -> Pipeline:
    """Return a problem of stages on one level or two, drawn at random."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 5))
    nodes = tuple(
        CostNode(name=str(number), forward=float(random.uniform(1, 3)), parameters=float(random.uniform(1, 9)), activation=float(size))
        for number, size in enumerate(random.uniform(0, 2, count))
    )  # fmt: skip
    chain = [(number, number + 1) for number in range(count - 1)]
    skips = [(a, b) for a in range(count) for b in range(a + 2, count) if random.random() < 0.3]
    edges = tuple(CostEdge(source=a, target=b, bytes=nodes[a].activation) for a, b in (*chain[seed % 2 :], *skips))
    levels = tuple(Level(int(random.integers(1, 4)), float(random.uniform(2, 20))) for _ in range(1 + seed % 2))
    graph = CostGraph(name=f"random {seed}", nodes=nodes, edges=edges)
    return make_pipeline(graph, levels, transfers=bool(seed % 3))


def _drained(one: Pipeline, microbatches: int) -> Synchronous:
    """The same graph on the lowest level alone, with a flush."""
    return Synchronous(graph=one.graph, levels=one.levels[:1], transfers=one.transfers, microbatches=microbatches)


def _reduced_at_the_end(one: Pipeline, microbatches: int) -> Drained:
    """The same graph and network with a flush, gradients reduced at its end."""
    backward = tuple(replace(node, backward=node.forward * 1.7) for node in one.graph.nodes)
    graph = CostGraph(name=one.graph.name, nodes=backward, edges=one.graph.edges)
    return Drained(graph=graph, levels=one.levels, transfers=one.transfers, microbatches=microbatches)


def small_layouts(seed: int) -> Layouts:
    """Return choices of some operations, with a limit of memory every other time, drawn at random."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 4, int(random.integers(2, 6))).tolist()
    pairs = [(a, b) for a in range(len(sizes)) for b in range(a + 1, len(sizes)) if random.random() < 0.6]
    held = tuple(random.uniform(0, 9, size) for size in sizes)
    return Layouts(
        names=tuple(f"op {number}" for number in range(len(sizes))),
        divides=tuple(tuple((Along("axis", str(choice)),) for choice in range(size)) for size in sizes),
        costs=tuple(random.integers(0, 9, size).astype(float) for size in sizes),
        held=held,
        weights=tuple(np.zeros(size) for size in sizes),
        edges={(a, b): random.integers(0, 9, (sizes[a], sizes[b])).astype(float) for a, b in pairs},
        memory=math.inf if seed % 2 else float(sum(one.mean() for one in held)),
    )


def small_hybrid(seed: int) -> Hybrid:
    """Return nodes that run on one device or two, as they are or with recomputation, and not too much memory, drawn at random."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 4))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count) if random.random() < 0.7]

    def ways(number: int) -> tuple[CostWay, ...]:
        found = []
        reads, readers = (sum(pair[end] == number for pair in pairs) for end in (1, 0))
        for tensor in (1, 2):
            seconds, held = float(random.uniform(1, 3)) / tensor, float(random.uniform(1, 3)) / tensor
            more = tuple(random.uniform(0, tensor - 1, reads).tolist()), tuple(random.uniform(0, 1, readers).tolist())
            for again in range(1 + seed % 2 + (seed % 5 == 0)):
                found.append(
                    CostWay(
                        kind=str(again), tensor=tensor, seconds=seconds * (1 + again / 3), parameters=held,
                        kept=3 / tensor / (1 + again), held=held + again / 2, gathers=more[0], scatters=more[1],
                    )
                )  # fmt: skip
        return tuple(found)

    nodes = tuple(CostNode(name=str(number), ways=ways(number)) for number in range(count))
    edges = tuple(CostEdge(source=a, target=b, bytes=float(random.uniform(0, 2))) for a, b in pairs)
    return make_hybrid(
        CostGraph(name=f"random {seed}", nodes=nodes, edges=edges),
        devices=int(random.integers(2, 5)),
        memory=float(random.uniform(4, 16)),
        bandwidth=float(random.uniform(2, 20)),
        microbatches=int(random.integers(1, 7)),
    )


def small_replicas(seed: int) -> UnlikeReplicas:
    """Return two replicas of two GPUs, or one of four, on two nodes, drawn at random, not always with room for all."""
    random = np.random.default_rng(seed)
    layers, stages = int(random.integers(4, 6)), 4 if seed % 4 == 0 else 2
    return UnlikeReplicas(
        kinds=("quick", "slow"),
        gpus=2,
        stages=stages,
        wave=stages + seed % 3,
        versions=tuple(range(stages, 0, -1)),
        seconds=random.uniform(1, 3, (2, layers)) * np.array([[1.0], [random.uniform(1, 4)]]),
        received=random.uniform(0, 2, layers),
        weights=random.uniform(0, 1, layers),
        states=random.uniform(0, 2, layers),
        kept=random.uniform(0, 1, layers),
        work=random.uniform(0, 1, layers),
        beside=1.0,
        memory=random.uniform(6, 20, 2),
        inside=float(random.uniform(4, 20)),
        between=float(random.uniform(1, 4)),
    )


def _on_meshes(one: Hybrid) -> Meshes:
    """The same graph and machine with a flush."""
    return Meshes(**{field.name: getattr(one, field.name) for field in fields(one)})


SMALL_PROBLEMS: dict[type[Problem[Any]], Callable[[int], Problem[Any]]] = {
    Placement: lambda seed: make_placement(small_graph(seed)),
    Pipeline: small_pipeline,
    Synchronous: lambda seed: _drained(small_pipeline(seed), 1 + seed % 5),
    Drained: lambda seed: _reduced_at_the_end(small_pipeline(seed), 1 + seed % 5),
    Layouts: small_layouts,
    Hybrid: small_hybrid,
    Meshes: lambda seed: _on_meshes(small_hybrid(seed)),
    UnlikeReplicas: small_replicas,
}
"""Kind of problem -> a small one by its seed."""


class PlannerContract:
    """The promises of one planner.

    Args:
        planner: the one to check.
    """

    def __init__(self, planner: Planner[Any]) -> None:
        self.planner = planner

    def check_all(self, seeds: int = 25) -> None:
        """Check all promises on so many random problems of every kind that it solves."""
        kinds = [kind for kind in SMALL_PROBLEMS if issubclass(kind, self.planner.solves)]
        assert kinds, f"{self.planner.name}: nobody draws problems of the kind that it solves"
        assert getattr(self.planner, "source", ""), f"{self.planner.name}: no source"
        for kind in kinds:
            label = f"{self.planner.name}, {kind.__name__}"
            found = [self.check(SMALL_PROBLEMS[kind](seed), f"{label} {seed}") for seed in range(seeds)]
            assert True in found or False not in found, (
                f"{label}: it offered no plan that holds, though {found.count(False)} of {seeds} problems have one"
            )

    def check(self, problem: Problem[Any], where: str = "") -> bool | None:
        """Check the answer to one problem against all its plans; return whether there was one, None where no plan can hold."""
        plans = [(problem.cost(plan), plan) for plan in problem.every_plan()]
        least = min(cost for cost, _ in plans)
        covered = min((cost for cost, plan in plans if self.planner.covers(problem, plan)), default=math.inf)
        try:
            found = self.planner.solve(problem, seed=3)
        except PlanError:
            assert math.isinf(covered), f"{where}: nothing was found, but there is a plan of {covered}"
            return False if math.isfinite(least) else None
        assert math.isfinite(least), f"{where}: no plan can hold, but one was found"
        problem.check(found.plan)
        assert found.cost == problem.cost(found.plan), f"{where}: says {found.cost}, costs {problem.cost(found.plan)}"
        assert found.lower_bound <= least * (1 + _CLOSE), f"{where}: bound {found.lower_bound} above the best, {least}"
        assert found.cost >= least * (1 - _CLOSE), f"{where}: {found.cost} below the best, {least}"
        if found.best_of:
            assert found.cost <= covered * (1 + 1e-6), (
                f"{where}: {found.cost}, but the best of {found.best_of} is {covered}"
            )
        costs = [cost for _, _, cost in found.history]
        assert costs == sorted(costs, reverse=True), f"{where}: history {costs}"
        assert costs[-1:] == [found.cost], f"{where}: history {costs} ends elsewhere"
        assert found.evaluations > 0, f"{where}: nothing was priced"
        again = self.planner.solve(problem, seed=3)
        assert (again.plan, again.cost, again.evaluations) == (found.plan, found.cost, found.evaluations), (
            f"{where}: the same seed, another answer"
        )
        return True
