"""Stages with equally many layers, all with the same degrees and the same kind of ways: what PipeDream-2BW's planner tries.

Layers are the nodes of which there are most: those that hold as many bytes of weights in each of their ways.  What lies before them goes
to the first stage and the rest to the last, or to stages of their own; of layers that do not divide evenly the last stages get one more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.hybrid import Hybrid, HybridStage, Stages
from simulator.workload.cost_graph import CostNode

__all__ = ["EqualStages", "equal_pipelines"]


class EqualStages(Planner[Stages]):
    """All pipelines of equal stages."""

    name = "equal_stages"
    source = "Narayanan et al., PipeDream-2BW, ICML 2021, as msr-fiddle/piper has it"
    solves = Hybrid
    best_of = "pipelines of equal stages"

    def plan(self, problem: Hybrid, oracle: Oracle[Stages], seed: int) -> float | None:
        """See `Planner.plan`."""
        for plan in equal_pipelines(problem):
            oracle.cost(plan)
            if oracle.over:
                break
        return None


def equal_pipelines(problem: Hybrid) -> Iterator[Stages]:
    """Yield them all, whether they fit or not."""
    for ends in _cuts(problem):
        for tensor, replicas in problem.degrees:
            if len(ends) * tensor * replicas > problem.devices or len(ends) * replicas > problem.most_replicas:
                continue
            ways = problem.ways[tensor].numbers
            begins = (0, *ends[:-1])
            for kind in range(ways.shape[1]):
                if (ways[:, kind] < 0).any():
                    continue
                yield tuple(
                    HybridStage(
                        end, tensor, replicas, tuple(ways[problem.states[end] & ~problem.states[begin], kind].tolist())
                    )
                    for begin, end in zip(begins, ends, strict=True)
                )


def _cuts(problem: Hybrid) -> Iterator[tuple[int, ...]]:
    """Ideals at which stages end."""
    nodes = problem.graph.nodes
    kinds = [_size(node) for node in nodes]
    most = Counter(kinds).most_common(1)[0][0]
    layers = [number for number in problem.graph.order if kinds[number] == most]
    reads: list[set[int]] = [set() for _ in nodes]
    for number in problem.graph.order:
        for source in problem.graph.sources[number]:
            reads[number] |= {source} | reads[source]
    before = frozenset(range(len(nodes))) - {n for n in range(len(nodes)) if n in layers or reads[n] & set(layers)}
    states = {frozenset(np.flatnonzero(state).tolist()): number for number, state in enumerate(problem.states)}
    whole = frozenset(range(len(nodes)))
    for apart in (False, True):
        for count in range(1, min(len(layers), problem.devices) + 1):
            small, larger = divmod(len(layers), count)
            sizes = [small + (place >= count - larger) for place in range(count)]
            reached = [before | frozenset(layers[: sum(sizes[: place + 1])]) for place in range(count)]
            sets = [before, *reached, whole] if apart else [*reached[:-1], whole]
            ends = [states.get(one) for one in dict.fromkeys(sets) if one]
            if None not in ends:
                yield tuple(end for end in ends if end is not None)


def _size(node: CostNode) -> tuple[tuple[int, int, float], ...]:
    """What a node's ways hold of weights."""
    return tuple((place, way.tensor, way.parameters) for place, way in enumerate(node.ways))
