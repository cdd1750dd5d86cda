"""HetPipe: three ways to deal GPUs out to replicas, and for each replica the best order of its GPUs and split of its layers.

    node      all GPUs of a replica are of one node                            VVVV RRRR GGGG QQQQ
    equal     as many of each node in every replica                            VRGQ VRGQ VRGQ VRGQ
    hybrid    as many of two nodes in every replica, the nodes in any pairs    VVQQ VVQQ RRGG RRGG

The paper splits layers by an integer programme and takes one pairing; here a dynamic programme over first stages finds, for a time that no
stage may exceed, the least sum of all stages, and the time is found by halving, since the sum falls as it grows.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

import numpy as np

from simulator.planners.base import Oracle, Planner
from simulator.planners.problems.unlike_replicas import Allocation, Numbers, Replica, UnlikeReplicas

__all__ = ["HetPipe", "best_replicas", "distributions"]

Nodes = tuple[int, ...]


class HetPipe(Planner[Allocation]):
    """The best of the three distributions."""

    name = "hetpipe"
    source = (
        "Park et al., HetPipe, ATC 2020, arXiv 2005.14038, sections 7 and 8.1 (distributions from memory, unverified)"
    )
    solves = UnlikeReplicas
    best_of = "node, equal and hybrid distributions"

    def covers(self, problem: UnlikeReplicas, plan: Allocation) -> bool:
        """See `Planner.covers`."""
        found = sorted(tuple(sorted(replica.nodes)) for replica in plan)
        return any(found == sorted(rows) for rows in distributions(problem))

    def plan(self, problem: UnlikeReplicas, oracle: Oracle[Allocation], seed: int) -> float | None:
        """See `Planner.plan`."""
        known: dict[Nodes, Replica | None] = {}
        for rows in distributions(problem):
            replicas = best_replicas(problem, rows, oracle, known)
            if replicas:
                oracle.cost(replicas)
            if oracle.over:
                return None
        return None


def distributions(problem: UnlikeReplicas) -> Iterator[tuple[Nodes, ...]]:
    """Yield the nodes of the GPUs of every replica, in order, for each distribution that the numbers of GPUs allow."""
    count, gpus, stages = len(problem.kinds), problem.gpus, problem.stages
    if gpus % stages == 0:
        yield tuple((node,) * stages for node in range(count) for _ in range(gpus // stages))
    if stages % count == 0 and count > 1:
        yield tuple(tuple(sorted([*range(count)] * (stages // count))) for _ in range(problem.replicas))
    if stages % 2 == 0 and count % 2 == 0 and count > 2 and 2 * gpus % stages == 0:
        for pairs in _pairings(tuple(range(count))):
            yield tuple(
                (*[a] * (stages // 2), *[b] * (stages // 2)) for a, b in pairs for _ in range(2 * gpus // stages)
            )


def _pairings(nodes: Nodes) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield all ways to pair nodes.

    >>> list(_pairings((0, 1, 2, 3)))
    [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    """
    if not nodes:
        yield ()
        return
    first, *others = nodes
    for other in others:
        for rest in _pairings(tuple(node for node in others if node != other)):
            yield ((first, other), *rest)


def best_replicas(
    problem: UnlikeReplicas, rows: tuple[Nodes, ...], oracle: Oracle[Allocation], known: dict[Nodes, Replica | None]
) -> Allocation:
    """Return the best replicas of these GPUs; () where one does not fit.

    Args:
        rows: of each replica: the nodes of its GPUs.
        known: best replicas of GPUs that were looked at before; filled.
    """
    for nodes in dict.fromkeys(rows):
        if nodes not in known:
            known[nodes] = _best_replica(problem, nodes, oracle)
    found = [known[nodes] for nodes in rows]
    return tuple(replica for replica in found if replica) if all(found) else ()


def _best_replica(problem: UnlikeReplicas, nodes: Nodes, oracle: Oracle[Allocation]) -> Replica | None:
    """The replica of these GPUs, in any order, that goes at the best pace; None where none fits."""
    best: tuple[float, Replica] | None = None
    for order in sorted({*itertools.permutations(nodes)}):
        tables = problem.seconds_on(order)
        oracle.priced(sum(table.size for table in tables))
        for split in _splits(problem, tables):
            replica = Replica(order, split)
            pace = problem.pace(problem.seconds_of(replica))
            if best is None or pace < best[0]:
                best = pace, replica
    return best[1] if best else None


def _splits(problem: UnlikeReplicas, tables: list[Numbers]) -> list[tuple[int, ...]]:
    """Layers of the stages, of which one is at the best pace; none where they do not fit."""
    times = np.unique(np.concatenate([table[np.isfinite(table)] for table in tables]))
    last = bisect.bisect_left(times, True, key=lambda most: _least(tables, float(most))[0] <= problem.wave * most)
    found = [_least(tables, float(most))[1] for most in times[max(0, last - 1) : last + 1]]
    if last == len(times):
        found.append(_least(tables, np.inf)[1])
    return [split for split in found if split]


def _least(tables: list[Numbers], most: float) -> tuple[float, tuple[int, ...]]:
    """The least sum of stages of which none takes more than so long, and their layers; infinite and () where there are none."""
    size = len(tables[0])
    sums = np.full(size, np.inf)
    sums[0] = 0.0
    came = []
    for table in tables:
        ways = sums[:, None] + np.where(table <= most, table, np.inf)
        came.append(ways.argmin(axis=0))
        sums = ways.min(axis=0)
    if not np.isfinite(sums[-1]):
        return float(np.inf), ()
    ends = [size - 1]
    for before in reversed(came):
        ends.insert(0, int(before[ends[0]]))
    return float(sums[-1]), tuple(b - a for a, b in itertools.pairwise(ends))
