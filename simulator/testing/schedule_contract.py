"""What every pipeline schedule must keep, ours and other people's.

`ScheduleContract(schedule).check_all()` raises an AssertionError that names the broken promise and the shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from simulator.errors import PlanError
from simulator.schedules.action import KINDS, Action, Cell
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_check import check_order
from simulator.schedules.placement import Placement
from simulator.testing.member_contract import MemberContract

__all__ = ["ScheduleContract", "blocked_at"]

_SHAPE = re.compile(r"nearest that works: ranks=(\d+), microbatches=(\d+), chunks_per_rank=(\d+)")


class ScheduleContract(MemberContract[Schedule]):
    """The promises of one schedule, checked over many small shapes (p <= 8, or what it offers in their place)."""

    what = "schedule"

    @staticmethod
    def all_shapes() -> Iterator[Shape]:
        """Yield every shape that is tried, whether the schedule takes it or not."""
        for ranks in (1, 2, 3, 4, 5, 6, 8):
            counts = {1, 2, 3, 4, 7, ranks, ranks + 1, 2 * ranks, *([3 * ranks] if ranks <= 4 else [])}
            for microbatches in sorted(counts):
                for chunks_per_rank in (1, 2, 3):
                    yield Shape(ranks, microbatches, chunks_per_rank)

    def shapes(self) -> list[Shape]:
        """Return the small shapes that the schedule takes; of one that takes none, those that it offers in their place."""
        refusals = {shape: self._refusal(shape) for shape in self.all_shapes()}
        small = [shape for shape, refusal in refusals.items() if refusal is None]
        if small:
            return small
        offers = [_SHAPE.search(refusal or "") for refusal in refusals.values()]
        return list(dict.fromkeys(Shape(*map(int, offer.groups())) for offer in offers if offer))

    def check_all(self) -> None:
        """Check every promise below.

        Raises:
            AssertionError: one is broken.
        """
        self.check_identity()
        self.check_refusals()
        self.check_shapes()

    def check_identity(self) -> None:
        """Check that the name is the file's, and that source and aliases are given.

        Raises:
            AssertionError: one is missing or wrong.
        """
        schedule = self.member
        self.check_named()
        self._require(all(isinstance(alias, str) and alias for alias in schedule.aliases), "its aliases are names")
        self._require(schedule.replicas >= 1, "replicas is at least 1")

    def check_refusals(self) -> None:
        """Check that a refusal is a PlanError in all three methods, and that the shape it offers is taken.

        Raises:
            AssertionError: a refused shape gets through, or the way out is no way out.
        """
        self._require(bool(self.shapes()), "it takes or offers at least one shape")
        for shape in self.all_shapes():
            refusal = self._refusal(shape)
            if refusal is None:
                continue
            offered = _SHAPE.search(refusal)
            self._require(
                str(shape) in refusal and offered is not None, "a refusal has the values and a way out", shape
            )
            if offered is not None:
                way_out = Shape(*map(int, offered.groups()))
                self._require(self._refusal(way_out) is None, f"the shape it offers, {way_out}, works", shape)
            fallback = Placement.linear(shape)
            for build in (self.member.order, self.member.readable):
                self._require(_refuses(build, shape, fallback), f"{build.__name__} refuses what check refuses", shape)
            self._require(_refuses(self.member.placement, shape), "placement refuses what check refuses", shape)

    def check_shapes(self) -> None:
        """Check placement and order of every shape that the schedule takes.

        Raises:
            AssertionError: a promise is broken.
            ProgramError: an order breaks a rule of `check_order`.
        """
        for shape in self.shapes():
            self.check_shape(shape)

    def check_shape(self, shape: Shape) -> None:
        """Check placement and order of one accepted shape.

        Raises:
            AssertionError: a promise is broken.
            ProgramError: the order breaks a rule of `check_order`.
        """
        schedule = self.member
        placement = schedule.placement(shape)
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        sizes = (placement.ranks, placement.microbatches, placement.lanes)
        self._require(sizes == (p, m, schedule.replicas), "the placement covers ranks, microbatches and lanes", shape)
        chunks = p * schedule.held(v)
        self._require(placement.chunks >= chunks, "the placement has v chunks per rank (one with slices)", shape)
        self._require({schedule.replicas} == set(placement.weight_copies().tolist()), "copies of the weights", shape)
        order = schedule.order(shape, placement)
        steps = schedule.steps(shape)
        placement = placement.repeated(steps)
        check_order(order, placement, m * steps)
        self._require(order == schedule.order(shape, schedule.placement(shape)), "the same call, the same order", shape)
        readable = PipelineOrder.from_actions(schedule.readable(shape, schedule.placement(shape)))
        self._require(order == readable, "order equals its readable form", shape)
        self._require(order == PipelineOrder.parse(order.to_text()), "text form and back", shape)
        kinds = {KINDS[kind] for kind in set(order.kind.tolist())}
        self._require({"F"} < kinds, "it runs forwards and backwards", shape)
        self._require(
            ({"I", "W"} <= kinds) == schedule.splits_backward, "splits_backward says if it runs I and W", shape
        )
        self._check_steps(shape, order)
        stuck = blocked_at(order, placement)
        self._require(not stuck, f"the order can run; it stops before {[str(a) for a in stuck]}", shape)

    def _check_steps(self, shape: Shape, order: PipelineOrder) -> None:
        schedule = self.member
        steps, versions = schedule.steps(shape), schedule.weight_versions(shape)
        self._require(versions.shape == (shape.ranks,) and int(versions.min()) >= 1, "versions of the weights", shape)
        if schedule.flush:
            self._require(steps == 1 and set(versions.tolist()) == {1}, "a flush leaves one step, one version", shape)
            self._require(_refuses(schedule.steady_order, shape, 2), "no steady state with a flush", shape)
        else:
            self._require(order == schedule.steady_order(shape, steps), "order is that of the default steps", shape)

    def _refusal(self, shape: Shape) -> str | None:
        try:
            self.member.check(shape)
        except PlanError as error:
            return str(error)
        return None


def blocked_at(order: PipelineOrder, placement: Placement) -> list[Action]:
    """Return the actions, at most one per rank, at which an order run in turn comes to a stop; empty if it ends.

    >>> from simulator.schedules.order import B, F
    >>> order = PipelineOrder.from_actions([[F(0, 0), B(0, 0)], [F(1, 0), B(1, 0)]])
    >>> blocked_at(order, Placement([[0, 1]], [0]))
    []
    """
    last = placement.chunks - 1
    waiting = [list(reversed(order.cells(rank))) for rank in range(order.ranks)]
    done: dict[tuple[str, int, int], tuple[int, set[int]]] = {}

    def covered(kind: str, chunk: int, action: Action) -> bool:
        for i in range(action.microbatch, action.microbatch + action.count):
            parts, ended = done.get((kind, chunk, i), (1, set()))
            first, end = action.part * parts // action.parts, -(-(action.part + 1) * parts // action.parts)
            if not ended.issuperset(range(first, end)):
                return False
        return True

    def ready(action: Action) -> bool:
        kind, c = action.kind, action.chunk
        if kind == "F":
            return c == 0 or covered("F", c - 1, action)
        if kind == "W":
            return covered("I", c, action)
        return covered("F", c, action) and (c == last or covered("B", c + 1, action) or covered("I", c + 1, action))

    moved = True
    while moved:
        moved = False
        for cells in waiting:
            while cells and all(map(ready, _members(cells[-1]))):
                for action in _members(cells.pop()):
                    for i in range(action.microbatch, action.microbatch + action.count):
                        key = (action.kind, action.chunk, i)
                        done.setdefault(key, (action.parts, set()))[1].add(action.part)
                moved = True
    return [_members(cells[-1])[0] for cells in waiting if cells]


def _members(cell: Cell) -> tuple[Action, ...]:
    return cell if isinstance(cell, tuple) else (cell,)


def _refuses(build: object, *arguments: object) -> bool:
    try:
        build(*arguments)  # type: ignore[operator]
    except PlanError:
        return True
    return False
