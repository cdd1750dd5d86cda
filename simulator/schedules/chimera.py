"""Chimera: two pipelines in opposite directions over the same ranks, merged so that each fills the other's bubbles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.arrange import by_slots
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, B, F, PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["Chimera", "backwards_twice"]


class Chimera(Schedule):
    """Chimera with direct concatenation: units of p microbatches follow each other, shared evenly by the directions.

    In unit u, the k-th microbatch of a lane has its forward of stage c in slot 2pu + c + 2k and its backward in slot
    2pu + 2p - 1 - c + 2k.  No two actions of a rank share a slot; the order of a rank is the order of its slots.
    Microbatches are numbered through: the first half of a unit goes down lane 0, the second half up lane 1.  What p does not
    divide is a residual unit at the end, dealt out alike; of an odd number lane 0 takes one more.

    Class attributes:
        pairs: pipelines in either direction; pair j starts j * p / pairs ranks further on.
        group: microbatches that stand in the place of one.
    """

    name = "chimera"
    aliases: ClassVar[tuple[str, ...]] = ("chimera_direct",)
    source = (
        "Li and Hoefler, SC 2021, arXiv:2107.06925; order as in the authors' generator, github.com/Shigangli/Chimera"
    )
    replicas = 2
    pairs: ClassVar[int] = 1
    group: ClassVar[int] = 1

    def check(self, shape: Shape) -> None:
        """Refuse ranks that the lanes do not divide, chunks, fewer microbatches than lanes, and groups that are not full.

        Raises:
            PlanError: p is no multiple of the lanes, v is not 1, or m is no multiple of the group or below the lanes.
        """
        p, m, lanes, group = shape.ranks, shape.microbatches, 2 * self.pairs, self.group
        nearest = Shape(max(lanes, p - p % lanes), max(lanes * group, m + m % group))
        if p % lanes:
            rule = "the number of ranks is even" if lanes == 2 else f"ranks are a multiple of the {lanes} pipelines"
            raise self.refuse(rule, shape, nearest)
        if shape.chunks_per_rank != 1:
            raise self.refuse(
                "a rank holds one chunk of each direction", shape, nearest, "use schedule interleaved_1f1b"
            )
        if m % group:
            raise self.refuse(f"forwards take {group} microbatches", shape, nearest, "use schedule chimera")
        if m < lanes * group:
            rule = f"each of the {lanes} pipelines has {'a microbatch' if group == 1 else f'{group} microbatches'}"
            raise self.refuse(rule, shape, nearest, "use schedule one_f_one_b")

    def placement(self, shape: Shape) -> Placement:
        """Return a lane down and a lane up for each pair; the microbatches of a unit take them one after the other."""
        self.check(shape)
        p = shape.ranks
        stage = np.arange(p)
        down = [(stage + pair * p // self.pairs) % p for pair in range(self.pairs)]
        lane, _ = self._dealt(shape)
        lanes = np.stack([lane for row in down for lane in (row, row[::-1])]).astype(np.int32)
        return Placement(lanes, np.repeat(lane, self.group).astype(np.int8))

    def _dealt(self, shape: Shape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, per group of microbatches, its lane, and its place among those of the lane in the unit."""
        p, groups, lanes = shape.ranks, shape.microbatches // self.group, 2 * self.pairs
        unit, inside = np.divmod(np.arange(groups), p)
        size = np.minimum(p, groups - unit * p)
        each, more = np.divmod(size, lanes)
        first = more * (each + 1)  # what the lanes with one more take
        late = (inside - first) // np.maximum(each, 1)
        lane = np.where(inside < first, inside // (each + 1), more + late)
        place = np.where(inside < first, inside % (each + 1), (inside - first) % np.maximum(each, 1))
        return lane, place

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return the actions of every rank by slot."""
        self.check(shape)
        p, m = shape.ranks, shape.microbatches // self.group
        homes = placement.rank_of.tolist()

        def of_rank(rank: int) -> Iterator[Action]:
            by_slot: dict[int, Action] = {}
            for start in range(0, m, p):
                seen = [0] * len(homes)
                for i in range(start, min(start + p, m)):
                    lane = int(placement.lane_of[i * self.group])
                    c, k = homes[lane].index(rank), seen[lane]
                    seen[lane] += 1
                    by_slot[2 * start + c + 2 * k] = F(c, i)
                    by_slot[2 * start + 2 * p - 1 - c + 2 * k] = B(c, i)
            for slot in sorted(by_slot):
                yield from self.stands_for(by_slot[slot])

        return [of_rank(rank) for rank in range(p)]

    def stands_for(self, action: Action) -> tuple[Action, ...]:
        """Return what runs in the place of one action of the plain order."""
        return (action,)

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> print(Chimera().order(Shape(2, 2), Chimera().placement(Shape(2, 2))).to_text(), end="")
        0F0,1F1,1B1,0B0
        0F1,1F0,1B0,0B1
        """
        self.check(shape)
        p, m = shape.ranks, shape.microbatches // self.group
        number = np.arange(m, dtype=np.int32)
        base = number // p * (2 * p) + 2 * self._dealt(shape)[1]
        chunk = _stage_of(placement)[placement.lane_of[:: self.group]].T
        slots = np.concatenate([base + chunk, base + (2 * p - 1) - chunk], axis=1)
        return by_slots(slots, np.repeat([0, 1], m), np.concatenate([chunk, chunk], axis=1), np.tile(number, 2))


def _stage_of(placement: Placement) -> NDArray[np.int32]:
    """Return [lanes, ranks] the stage of a lane that a rank holds."""
    return np.argsort(placement.rank_of, axis=1).astype(np.int32)


def backwards_twice(plain: PipelineOrder) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return rank offsets, each action's place in `plain` and whether it is a second one, with every backward put twice."""
    times = 1 + plain.kind.astype(np.int64)
    place = np.repeat(np.arange(plain.size), times)
    second = np.concatenate([[False], place[1:] == place[:-1]])
    return np.concatenate([[0], np.cumsum(times)])[plain.rank_offsets], place, second
