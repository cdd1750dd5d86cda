"""PipeDream: 1F1B that never flushes; each microbatch changes the weights, and ranks stash the versions still needed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.one_chunk import OneChunk
from simulator.schedules.one_f_one_b import OneFOneB
from simulator.schedules.order import Action, PipelineOrder, warm_up_then_pairs
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["PipeDream"]


class PipeDream(OneChunk):
    """1F1B over the microbatches of many steps, numbered through; rank i keeps p - i versions of its weights."""

    name = "pipedream"
    aliases = ("pipedream_async",)
    source = "Harlap et al., PipeDream, SOSP 2019, arXiv:1806.03377 (1F1B with weight stashing)"
    flush = False
    updates_each_microbatch = True
    deals = True

    def __init__(self, widths: tuple[int, ...] = ()) -> None:
        self.widths = widths
        """Replicas of each stage; () = one of each."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, PipeDream) and self.widths == other.widths

    def __hash__(self) -> int:
        return hash((type(self), self.widths))

    def dealt(self, widths: tuple[int, ...]) -> PipeDream:
        """See `Schedule.dealt`: 1F1B-RR, microbatch m on replica m mod r of a stage with r.

        >>> print(PipeDream().dealt((2, 1)).steady_order(Shape(2, 2), 3).to_text(), end="")
        0F0,0F1,0F2,0F3,0B0,0B1,0F4,0F5,0B2,0B3,0B4,0B5
        1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,1F4,1B4,1F5,1B5
        """
        return type(self)(widths)

    def check(self, shape: Shape) -> None:
        """Refuse several chunks per rank, and microbatches that are no whole rounds of a stage's replicas.

        Raises:
            PlanError: with the nearest shape that works.
        """
        super().check(shape)
        rounds = math.lcm(*self.widths)
        if self.widths and shape.microbatches % rounds:
            near = Shape(shape.ranks, max(1, round(shape.microbatches / rounds)) * rounds)
            raise self.refuse(f"stages of {self.widths} replicas take microbatches in rounds", shape, near)

    def steps(self, shape: Shape) -> int:
        """Return how many steps show the steady state: as many microbatches are under way as there are replicas of all stages."""
        return super().steps(Shape(sum(self.widths) or shape.ranks, shape.microbatches))

    def weight_versions(self, shape: Shape) -> NDArray[np.int64]:
        """Return p - i for rank i: one for each microbatch that it has under way, and one for the one that it computes; of a replica
        of r, (n - 1) // r + 1 with n replicas of this stage and the later ones (runtime of msr-fiddle/pipedream).

        >>> PipeDream().weight_versions(Shape(4, 8)).tolist()
        [4, 3, 2, 1]
        >>> [PipeDream(w).weight_versions(Shape(len(w), 45)).tolist() for w in ((2, 1, 1), (9, 5, 1, 1))]
        [[2, 2, 1], [2, 2, 2, 1]]
        """
        widths = np.array(self.widths or (1,) * shape.ranks, np.int64)
        return (np.cumsum(widths[::-1])[::-1] - 1) // widths + 1

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return 1F1B over `steps(shape)` steps without a flush between them."""
        self.check(shape)
        return OneFOneB().readable(self._all(shape, self.steps(shape)), placement)

    def steady_order(self, shape: Shape, steps: int) -> PipelineOrder:
        """Return 1F1B over the microbatches of `steps` steps.

        Raises:
            PlanError: `check` refuses the shape.

        >>> PipeDream().steady_order(Shape(1, 1), 2).to_text()
        '0F0,0B0,0F1,0B1\\n'
        """
        self.check(shape)
        every = self._all(shape, steps)
        if self.widths:
            return self._in_rounds(every)
        return OneFOneB().order(every, Placement.linear(every))

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return `steady_order` of `steps(shape)` steps."""
        return self.steady_order(shape, self.steps(shape))

    def _in_rounds(self, every: Shape) -> PipelineOrder:
        """Every stage runs 1F1B in rounds: what one of its replicas does, then what the next one does."""
        kinds, microbatches = [], []
        for width, versions in zip(self.widths, self.weight_versions(every).tolist(), strict=True):
            kind, rounds = warm_up_then_pairs(np.array([versions - 1]), every.microbatches // width)
            kinds.append(np.repeat(kind[0], width))
            microbatches.append((rounds[0][:, None] * width + np.arange(width)).reshape(-1))
        rank = np.arange(every.ranks)
        return PipelineOrder.from_grid(np.stack(kinds), rank[:, None], np.stack(microbatches))

    @staticmethod
    def _all(shape: Shape, steps: int) -> Shape:
        return Shape(shape.ranks, shape.microbatches * steps)
