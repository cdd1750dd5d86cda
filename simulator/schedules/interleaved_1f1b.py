"""Interleaved 1F1B: every rank holds several chunks, visited in turn, which divides the bubble by their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.action import Cell
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, B, F, PipelineOrder, warm_up_then_pairs
from simulator.schedules.placement import Placement

__all__ = ["Interleaved1F1B", "round_size", "visits", "visits_plainly"]


class Interleaved1F1B(Schedule):
    """1F1B over chunks: a round of g microbatches goes through chunk 0, then through chunk 1, and so on.

    g is p where m is a multiple of p, as in Megatron-LM; else there are max(1, m div p) equal rounds, as in PyTorch.

    Class attributes:
        instead: the schedule to use with one chunk per rank.
        more_ahead: forwards by which the warm-up of every rank is longer.
    """

    name = "interleaved_1f1b"
    aliases = ("interleaved", "1F1B-interleaved")
    source = (
        "Narayanan et al., SC 2021, arXiv:2104.04473; Megatron-LM core/pipeline_parallel/schedules.py; rounds for "
        "other microbatches than multiples of p: PyTorch 2.13 torch.distributed.pipelining ScheduleInterleaved1F1B"
    )

    instead: ClassVar[str] = "one_f_one_b"
    more_ahead: ClassVar[int] = 0

    def check(self, shape: Shape) -> None:
        """Refuse one chunk per rank, and microbatches that cannot be cut into equal rounds.

        Raises:
            PlanError: v is 1, or m is not a multiple of max(1, m div p).
        """
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        if v > 1 and _even(m, p):
            return
        nearest = min(
            (k for k in range(max(1, m - p), m + p + 1) if _even(k, p)), key=lambda k: (abs(k - m), k % p != 0, k)
        )
        if v == 1:
            way_out = Shape(p, nearest, 2)
            raise self.refuse("a rank holds two or more chunks", shape, way_out, f"use schedule {self.instead}")
        rule = f"microbatches go in max(1, m div p) = {m // p} equal rounds, which is sure for a multiple of {p} ranks"
        raise self.refuse(rule, shape, Shape(p, nearest, v))

    def passes(self, shape: Shape, rank: int) -> tuple[list[Action], list[Action], int]:
        """Return the forwards of a rank and its backwards, either in order, and how many forwards come before the first backward."""
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        visits = visits_plainly(shape)
        forwards = [F(turn * p + rank, i) for turn, i in visits]
        backwards = [B((v - 1 - turn) * p + rank, i) for turn, i in visits]
        return forwards, backwards, min(m * v, 2 * (p - 1 - rank) + (v - 1) * round_size(m, p) + self.more_ahead)

    def readable(self, shape: Shape, placement: Placement) -> Sequence[Iterator[Cell]]:
        """Return min(m*v, 2(p-1-i) + (v-1)g) forwards, then pairs F, B, then the other backwards, for every rank i."""
        self.check(shape)

        def of_rank(rank: int) -> Iterator[Cell]:
            forwards, backwards, warm_up = self.passes(shape, rank)
            yield from forwards[:warm_up]
            for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
                yield forward
                yield backward
            yield from backwards[len(forwards) - warm_up :]

        return [of_rank(rank) for rank in range(shape.ranks)]

    def grid(self, shape: Shape) -> tuple[NDArray[np.int32], NDArray[np.int8], NDArray[np.int32], NDArray[np.int32]]:
        """Return the forwards before the first backward of every rank, and [ranks, passes] kind, chunk and microbatch of each pass."""
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        rank = np.arange(p, dtype=np.int32)
        warm_up = np.minimum(2 * (p - 1 - rank) + (v - 1) * round_size(m, p) + self.more_ahead, m * v)
        kind, number = warm_up_then_pairs(warm_up, m * v)
        turn, microbatch = visits(shape)
        return warm_up, kind, np.stack([turn, v - 1 - turn])[kind, number] * p + rank[:, None], microbatch[number]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> Interleaved1F1B().order(Shape(1, 2, 2), Placement.linear(Shape(1, 2, 2))).to_text()
        '0F0,1F0,1B0,0F1,0B0,1F1,1B1,0B1\\n'
        """
        self.check(shape)
        _, kind, chunk, microbatch = self.grid(shape)
        return PipelineOrder.from_grid(kind, chunk, microbatch)


def _even(microbatches: int, ranks: int) -> bool:
    return microbatches % max(1, microbatches // ranks) == 0


def round_size(microbatches: int, ranks: int) -> int:
    """Return how many microbatches go through a chunk before the next chunk has its turn.

    >>> round_size(8, 4), round_size(10, 4), round_size(3, 4)
    (4, 5, 3)
    """
    return microbatches // max(1, microbatches // ranks)


def visits_plainly(shape: Shape) -> list[tuple[int, int]]:
    """Return (which of its chunks, microbatch) of every forward of a rank, in order.

    >>> visits_plainly(Shape(1, 2, 2)), visits_plainly(Shape(2, 2, 2))
    ([(0, 0), (1, 0), (0, 1), (1, 1)], [(0, 0), (0, 1), (1, 0), (1, 1)])
    """
    m, g = shape.microbatches, round_size(shape.microbatches, shape.ranks)
    turns = range(shape.chunks_per_rank)
    return [(turn, i) for start in range(0, m, g) for turn in turns for i in range(start, start + g)]


def visits(shape: Shape) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return [forwards of a rank] what `visits_plainly` does, as arrays."""
    v, g = shape.chunks_per_rank, round_size(shape.microbatches, shape.ranks)
    visit = np.arange(shape.microbatches * v, dtype=np.int32)
    return visit // g % v, visit // (g * v) * g + visit % g
