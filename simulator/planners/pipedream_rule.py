"""PipeDream's rule for graphs with branches: what has two ways round is one piece, and the pieces are a chain.

Nodes that make an output inside one biconnected component lie together, forward and backward nodes looked at as one graph; the pieces are
then cut as in `linearised`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from simulator.planners.base import Oracle, Planner
from simulator.planners.ideals import best_in_rows, without_idle
from simulator.planners.problems.placement import Assignment, Placement

__all__ = ["PipeDreamRule", "biconnected"]


class PipeDreamRule(Planner[Assignment]):
    """Biconnected components, then the best cuts."""

    name = "pipedream_rule"
    source = "PipeDream, SOSP 2019, as arXiv 2006.16423, has it for graphs with branches"
    solves = Placement
    best_of = "cuts of four orders of biconnected components"

    def plan(self, problem: Placement, oracle: Oracle[Assignment], seed: int) -> float | None:
        """See `Planner.plan`."""
        block_of = {node: block for block, nodes in enumerate(problem.blocks) for node in nodes}
        nodes = problem.graph.nodes
        sides: dict[tuple[int, bool], int] = {}
        edges: list[tuple[int, int]] = []
        for edge in problem.graph.edges:
            ends = [(block_of[end], nodes[end].passes_back) for end in (edge.source, edge.target)]
            if ends[0] != ends[1]:
                source, target = (sides.setdefault(end, len(sides)) for end in ends)
                edges.append((source, target))
        blocks = {number: block for (block, _), number in sides.items()}
        pairs: list[tuple[int, int]] = []
        for component in biconnected(len(sides), edges):
            makers = sorted({blocks[edges[number][0]] for number in component})
            pairs += list(pairwise(makers))
        pieces, label = problem.merged(pairs)
        small, again = without_idle(pieces)
        best_in_rows(small, oracle, again[label])
        return None


def biconnected(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the numbers of the edges of every biconnected component of an undirected graph (Hopcroft and Tarjan 1973).

    >>> biconnected(4, [(0, 1), (1, 2), (2, 0), (2, 3)])
    [[3], [0, 1, 2]]
    """
    edges = list(edges)
    near: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for number, (a, b) in enumerate(edges):
        near[a].append((b, number))
        near[b].append((a, number))
    entered, low = [0] * count, [0] * count
    clock = 0
    found: list[list[int]] = []
    waiting: list[int] = []
    for root in range(count):
        if entered[root]:
            continue
        clock += 1
        entered[root] = low[root] = clock
        path = [(root, -1, iter(near[root]))]
        while path:
            here, came_by, left = path[-1]
            for there, number in left:
                if number == came_by or (entered[there] and entered[there] > entered[here]):
                    continue
                waiting.append(number)
                if entered[there]:
                    low[here] = min(low[here], entered[there])
                    continue
                clock += 1
                entered[there] = low[there] = clock
                path.append((there, number, iter(near[there])))
                break
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    low[above] = min(low[above], low[here])
                    if low[here] >= entered[above]:
                        place = waiting.index(came_by)
                        found.append(sorted(waiting[place:]))
                        del waiting[place:]
    return found
