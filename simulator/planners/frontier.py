"""The frontier of memory and bytes moved: elimination that keeps, for every choice of the neighbours, all that nothing else beats.

Costs in series are added (product), choices side by side are put together (union), and what is worse in both is dropped; the frontier
of the whole layer is what is left (Cai et al., TensorOpt, arXiv 2004.10856).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

from simulator.errors import refuse
from simulator.planners.base import Oracle, Planner
from simulator.planners.elimination import next_to_go
from simulator.planners.problems.layouts import Choices, Layouts

__all__ = ["Frontier", "Point", "Way", "frontier"]

_MOST_PRODUCTS = 50_000_000


class Way(NamedTuple):
    """The choices of a part of the layer: one of an operation's, or those of two parts."""

    operation: int = -1
    choice: int = -1
    parts: tuple[Way, ...] = ()


class Point(NamedTuple):
    """What a way through a part of the layer costs.

    Args:
        held: B of a rank.
        moved: B over all ranks.
        way: its choices.
    """

    held: float
    moved: float
    way: Way = Way()


class Frontier(Planner[Choices]):
    """The least bytes within the memory of a rank."""

    name = "frontier"
    aliases: ClassVar[tuple[str, ...]] = ("tensoropt",)
    source = "Cai et al., TensorOpt, arXiv 2004.10856"
    solves = Layouts
    best_of = "layouts that fit"

    def covers(self, problem: Layouts, plan: Choices) -> bool:
        """See `Planner.covers`."""
        return True

    def plan(self, problem: Layouts, oracle: Oracle[Choices], seed: int) -> float | None:
        """See `Planner.plan`."""
        points, priced = _frontier(problem, lambda: oracle.over)
        oracle.priced(priced)
        for plan in points:
            oracle.cost(plan)
        return oracle.least


def frontier(problem: Layouts) -> list[tuple[float, float, Choices]]:
    """Return (bytes held by a rank, bytes moved over all, plan) of all layouts that fit and that no other beats in both; most held last.

    Raises:
        PlanError: too many operations hang together.
    """
    return [(problem.bytes_held(plan), problem.moved(plan), plan) for plan in _frontier(problem, lambda: False)[0]]


def _frontier(problem: Layouts, stopped: Callable[[], bool]) -> tuple[list[Choices], int]:
    sizes = [len(costs) for costs in problem.costs]
    tables: list[tuple[Choices, dict[Choices, list[Point]]]] = []
    for number, (costs, held) in enumerate(zip(problem.costs, problem.held, strict=True)):
        alone: dict[Choices, list[Point]] = {
            (c,): [Point(float(held[c]), float(costs[c]), Way(number, c))] for c in range(sizes[number])
        }
        tables.append(((number,), alone))
    for pair, moved in problem.edges.items():
        choices: Iterable[Choices] = itertools.product(*(range(sizes[n]) for n in pair))
        tables.append((pair, {one: [Point(0.0, float(moved[one]))] for one in choices}))
    left, priced = set(range(len(sizes))), 0
    while left:
        node, others = next_to_go([over for over, _ in tables], left, sizes)
        mine = [table for table in tables if node in table[0]]
        made: dict[Choices, list[Point]] = {}
        for picked in itertools.product(*(range(sizes[n]) for n in others)):
            union: list[Point] = []
            for choice in range(sizes[node]):
                where = dict(zip((node, *others), (choice, *picked), strict=True))
                way = [Point(0.0, 0.0)]
                for over, points in mine:
                    beside = points[tuple(where[n] for n in over)]
                    priced += len(way) * len(beside)
                    way = _kept((_joined(a, b) for a in way for b in beside), problem.memory)
                union += way
            made[picked] = _kept(union, problem.memory)
            if stopped():
                return [], priced
            if priced > _MOST_PRODUCTS:
                refuse(
                    f"a frontier is made of at most {_MOST_PRODUCTS:,} sums",
                    f"{len(sizes)} operations have more",
                    "--planner elimination, or a mesh of fewer axes",
                )
        tables = [table for table in tables if node not in table[0]] + [(others, made)]
        left.discard(node)
    whole = [Point(0.0, 0.0)]
    for _, points in tables:
        whole = _kept((_joined(a, b) for a in whole for b in points[()]), problem.memory)
    return [_plan(point, len(sizes)) for point in whole], priced


def _joined(a: Point, b: Point) -> Point:
    return Point(a.held + b.held, a.moved + b.moved, Way(parts=(a.way, b.way)))


def _kept(points: Iterable[Point], memory: float) -> list[Point]:
    """Those that fit and that no other beats in both, by what they hold."""
    found: list[Point] = []
    for point in sorted(points, key=lambda one: one[:2]):
        if point.held <= memory and (not found or point.moved < found[-1].moved):
            found.append(point)
    return found


def _plan(point: Point, count: int) -> Choices:
    """The choices along a point's way."""
    plan: dict[int, int] = {}
    waiting = [point.way]
    while waiting:
        way = waiting.pop()
        plan[way.operation] = way.choice
        waiting += way.parts
    return tuple(plan[number] for number in range(count))
