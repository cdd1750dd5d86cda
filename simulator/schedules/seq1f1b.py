"""Seq1F1B: 1F1B on slices of the sequence, so warm-up and activations shrink with the number of slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from simulator.schedules.order import Action, B, F, PipelineOrder, warm_up_then_pairs
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape
from simulator.schedules.sliced import Sliced

__all__ = ["Seq1F1B"]


class Seq1F1B(Sliced):
    """Forwards take the slices in order; backwards take microbatches in order and the slices of each from the last.

    Class attributes:
        hops: forwards of the warm-up for every later rank.
    """

    name = "seq1f1b"
    source = "Sun et al., Seq1F1B, NAACL 2025, arXiv:2406.03488; github.com/MayDomine/Seq1F1B"
    hops: ClassVar[int] = 1

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return min(m*v, hops * (p-1-i) + v-1) forwards, then F and B in turn, then the other B, for every rank i."""
        self.check(shape)
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank

        def of_rank(rank: int) -> Iterator[Action]:
            forwards = [F(rank, i, part=part, parts=v) for i in range(m) for part in range(v)]
            backwards = [B(rank, i, part=part, parts=v) for i in range(m) for part in reversed(range(v))]
            ahead = min(m * v, self.hops * (p - 1 - rank) + v - 1)
            yield from forwards[:ahead]
            for forward, backward in zip(forwards[ahead:], backwards, strict=False):
                yield forward
                yield backward
            yield from backwards[m * v - ahead :]

        return [of_rank(rank) for rank in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> Seq1F1B().order(Shape(1, 1, 2), Placement.linear(Shape(1, 1))).to_text()
        '0F0.1/2,0F0.2/2,0B0.2/2,0B0.1/2\\n'
        """
        self.check(shape)
        v = shape.chunks_per_rank
        rank = np.arange(shape.ranks, dtype=np.int32)
        kind, number = warm_up_then_pairs(self.hops * (shape.ranks - 1 - rank) + v - 1, shape.microbatches * v)
        microbatch, part = np.divmod(number, v)
        part = np.where(kind == 1, v - 1 - part, part)
        return PipelineOrder.from_grid(kind, rank[:, None], microbatch, part=part, parts=v)
