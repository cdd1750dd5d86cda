"""Chimera: two pipelines in opposite directions over the same ranks, merged so that each fills the other's bubbles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, B, F, PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["Chimera"]


class Chimera(Schedule):
    """Chimera with direct concatenation: units of p microbatches follow each other, half of each in either direction.

    In unit u, the k-th microbatch of a lane has its forward of stage c in slot 2pu + c + 2k and its backward in slot
    2pu + 2p - 1 - c + 2k.  No two actions of a rank share a slot; the order of a rank is the order of its slots.
    Microbatches are numbered through: the first half of a unit goes down lane 0, the second half up lane 1.
    """

    name = "chimera"
    aliases = ("chimera_direct",)
    source = (
        "Li and Hoefler, SC 2021, arXiv:2107.06925; order as in the authors' generator, github.com/Shigangli/Chimera"
    )
    replicas = 2

    def check(self, shape: Shape) -> None:
        """Refuse odd ranks, chunks, and microbatches that do not fill units evenly.

        Raises:
            PlanError: p is odd, v is not 1, or m is neither a multiple of p nor an even number below p.
        """
        p, m = shape.ranks, shape.microbatches
        ranks = p if p % 2 == 0 else max(2, p - 1)
        unit = 2 if m < ranks else ranks
        nearest = Shape(ranks, max(unit, (m + unit // 2) // unit * unit))
        if p % 2:
            raise self.refuse("the number of ranks is even", shape, nearest)
        if shape.chunks_per_rank != 1:
            raise self.refuse(
                "a rank holds one chunk of each direction", shape, nearest, "use schedule interleaved_1f1b"
            )
        if m % unit:
            rule = (
                "microbatches are even in number below the ranks"
                if m < p
                else "microbatches are a multiple of the ranks"
            )
            raise self.refuse(rule, shape, nearest, "use schedule one_f_one_b")

    def placement(self, shape: Shape) -> Placement:
        """Return two lanes, stage c on rank c and on rank p-1-c; of each unit the first half takes lane 0."""
        self.check(shape)
        unit = min(shape.ranks, shape.microbatches)
        return Placement.bidirectional(shape, np.arange(shape.microbatches) % unit >= unit // 2)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return the actions of every rank by slot."""
        self.check(shape)
        p, m = shape.ranks, shape.microbatches
        unit = min(p, m)

        def of_rank(rank: int) -> Iterator[Action]:
            by_slot: dict[int, Action] = {}
            for i in range(m):
                u, k = i // unit, i % unit % (unit // 2)
                c = rank if placement.lane_of[i] == 0 else p - 1 - rank
                by_slot[2 * p * u + c + 2 * k] = F(c, i)
                by_slot[2 * p * u + 2 * p - 1 - c + 2 * k] = B(c, i)
            yield from (by_slot[slot] for slot in sorted(by_slot))

        return [of_rank(rank) for rank in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> print(Chimera().order(Shape(2, 2), Chimera().placement(Shape(2, 2))).to_text(), end="")
        0F0,1F1,1B1,0B0
        0F1,1F0,1B0,0B1
        """
        self.check(shape)
        p, m = shape.ranks, shape.microbatches
        unit = min(p, m)
        number = np.arange(m, dtype=np.int32)
        base = number // unit * (2 * p) + number % (unit // 2) * 2
        rank = np.arange(p, dtype=np.int32)[:, None]
        chunk = np.where(placement.lane_of == 0, rank, p - 1 - rank)
        slots = np.concatenate([base + chunk, base + (2 * p - 1) - chunk], axis=1)
        by_slot = np.argsort(slots, axis=1)

        def ordered(grid: NDArray) -> NDArray:
            return np.take_along_axis(np.concatenate([grid, grid], axis=1), by_slot, axis=1)

        return PipelineOrder.from_grid(by_slot >= m, ordered(chunk), number[by_slot % m])
