"""PipeDream: 1F1B that never flushes; each microbatch changes the weights, and ranks stash the versions still needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.one_chunk import OneChunk
from simulator.schedules.one_f_one_b import OneFOneB
from simulator.schedules.order import Action, PipelineOrder
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

    def weight_versions(self, shape: Shape) -> NDArray[np.int64]:
        """Return p - i for rank i: one for each microbatch that it has under way.

        >>> PipeDream().weight_versions(Shape(4, 8)).tolist()
        [4, 3, 2, 1]
        """
        return shape.ranks - np.arange(shape.ranks, dtype=np.int64)

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
        return OneFOneB().order(every, Placement.linear(every))

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return `steady_order` of `steps(shape)` steps."""
        return self.steady_order(shape, self.steps(shape))

    @staticmethod
    def _all(shape: Shape, steps: int) -> Shape:
        return Shape(shape.ranks, shape.microbatches * steps)
