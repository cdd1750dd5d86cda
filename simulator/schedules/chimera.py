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
    Microbatches are numbered through: the first half of a unit goes down lane 0, the second half up lane 1.

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
        """Refuse ranks that the lanes do not divide, chunks, and microbatches that do not fill units evenly.

        Raises:
            PlanError: p is no multiple of the lanes, v is not 1, or m / group is neither a multiple of p nor, below p,
                a multiple of the lanes.
        """
        p, m, lanes, group = shape.ranks, shape.microbatches, 2 * self.pairs, self.group
        ranks = max(lanes, p - p % lanes)
        unit = group * (lanes if m < group * ranks else ranks)
        nearest = Shape(ranks, max(unit, (m + unit // 2) // unit * unit))
        if p % lanes:
            rule = "the number of ranks is even" if lanes == 2 else f"ranks are a multiple of the {lanes} pipelines"
            raise self.refuse(rule, shape, nearest)
        if shape.chunks_per_rank != 1:
            raise self.refuse(
                "a rank holds one chunk of each direction", shape, nearest, "use schedule interleaved_1f1b"
            )
        if m % unit:
            of = "the ranks" if group == 1 else f"{group} times the ranks"
            rule = f"microbatches are a multiple of {of}"
            if m < group * p:
                rule = "microbatches are even in number below the ranks"
                if unit != 2:
                    rule = f"microbatches are a multiple of {unit} below {of}"
            raise self.refuse(rule, shape, nearest, "use schedule one_f_one_b")

    def placement(self, shape: Shape) -> Placement:
        """Return a lane down and a lane up for each pair; the microbatches of a unit take them one after the other."""
        self.check(shape)
        p, lanes = shape.ranks, 2 * self.pairs
        stage = np.arange(p)
        down = [(stage + pair * p // self.pairs) % p for pair in range(self.pairs)]
        unit = min(self.group * p, shape.microbatches)
        lane_of = (np.arange(shape.microbatches) % unit // (unit // lanes)).astype(np.int8)
        return Placement(np.stack([lane for row in down for lane in (row, row[::-1])]).astype(np.int32), lane_of)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return the actions of every rank by slot."""
        self.check(shape)
        p, m = shape.ranks, shape.microbatches // self.group
        unit = min(p, m)
        homes = placement.rank_of.tolist()

        def of_rank(rank: int) -> Iterator[Action]:
            by_slot: dict[int, Action] = {}
            for i in range(m):
                u, k = i // unit, i % unit % (unit // len(homes))
                c = homes[placement.lane_of[i * self.group]].index(rank)
                by_slot[2 * p * u + c + 2 * k] = F(c, i)
                by_slot[2 * p * u + 2 * p - 1 - c + 2 * k] = B(c, i)
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
        unit = min(p, m)
        number = np.arange(m, dtype=np.int32)
        base = number // unit * (2 * p) + number % (unit // (2 * self.pairs)) * 2
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
