"""HetPipe: PipeDream with as many minibatches under way as a wave has, however many ranks there are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.order import Action, B, F, PipelineOrder, warm_up_then_pairs
from simulator.schedules.pipedream import PipeDream
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["HetPipe"]


class HetPipe(PipeDream):
    """A step is a wave of m minibatches.  Rank 0 begins one whenever one has ended, so that m are under way; those that wait do so evenly
    over the ranks, where the paper's ranks take whatever came first.  Minibatch i knows its worker's own changes up to i - m."""

    name = "hetpipe"
    aliases = ("wave_pipeline",)
    source = "Park et al., HetPipe, ATC 2020, arXiv:2005.14038, section 4 (from memory, unverified)"
    deals = False

    def check(self, shape: Shape) -> None:
        """Refuse several chunks per rank, and small waves that do not divide the ranks: a window of whole waves would not be seen.

        Raises:
            PlanError: with the nearest shape that works.
        """
        if shape.microbatches < shape.ranks and shape.ranks % shape.microbatches:
            near = Shape(shape.ranks, shape.ranks)
            raise self.refuse("a wave has as many minibatches as there are ranks, more, or a divisor", shape, near)
        super().check(shape)

    def weight_versions(self, shape: Shape) -> NDArray[np.int64]:
        """Return how many minibatches a rank has under way, each with the weights that it began with: all m on rank 0, one on the last.

        >>> HetPipe().weight_versions(Shape(4, 7)).tolist(), HetPipe().weight_versions(Shape(4, 2)).tolist()
        ([7, 5, 3, 1], [2, 2, 2, 1])
        """
        later = shape.ranks - 1 - np.arange(shape.ranks)
        ahead = shape.microbatches - 1
        evenly = -(-ahead * later // max(1, shape.ranks - 1))
        return np.minimum(ahead, np.maximum(later, evenly)) + 1

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return, for every rank, one forward less than it has under way, then F and B in turn, then the other backwards."""
        self.check(shape)
        total = shape.microbatches * self.steps(shape)

        def of_rank(rank: int, versions: int) -> Iterator[Action]:
            yield from (F(rank, i) for i in range(versions - 1))
            for i in range(total - versions + 1):
                yield F(rank, versions - 1 + i)
                yield B(rank, i)
            yield from (B(rank, i) for i in range(total - versions + 1, total))

        return [of_rank(rank, versions) for rank, versions in enumerate(self.weight_versions(shape).tolist())]

    def steady_order(self, shape: Shape, steps: int) -> PipelineOrder:
        """Return the order of so many waves.

        Raises:
            PlanError: `check` refuses the shape.

        >>> print(HetPipe().steady_order(Shape(2, 3), 1).to_text(), end="")
        0F0,0F1,0F2,0B0,0B1,0B2
        1F0,1B0,1F1,1B1,1F2,1B2
        """
        self.check(shape)
        kind, microbatch = warm_up_then_pairs(self.weight_versions(shape) - 1, shape.microbatches * steps)
        return PipelineOrder.from_grid(kind, np.arange(shape.ranks)[:, None], microbatch)
