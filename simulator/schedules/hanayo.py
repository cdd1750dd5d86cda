"""Hanayo: stages run down and up the ranks in waves, which divides the bubble without a second copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.schedules.base import Schedule, Shape
from simulator.schedules.greedy import greedy_order, greedy_plainly
from simulator.schedules.order import Action, PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["Hanayo"]


class Hanayo(Schedule):
    """A free rank takes the ready action that is a backward, then lowest in microbatch, then lowest in stage.

    The order is decided with backwards twice as long as forwards and messages that take no time, and then kept.  The
    placement is the paper's; this rule of precedence is ours, since the paper's own order could not be read.
    """

    name = "hanayo"
    aliases = ("hanayo_greedy",)
    source = "Liu et al., Hanayo, SC 2023, arXiv:2308.15762 (waves; the greedy rule is this file's)"

    def check(self, shape: Shape) -> None:
        """Refuse an odd number of chunks per rank.

        Raises:
            PlanError: `shape.chunks_per_rank`, twice the waves, is odd.
        """
        v = shape.chunks_per_rank
        if v % 2:
            nearest = Shape(shape.ranks, shape.microbatches, v + 1)
            raise self.refuse("a rank holds two chunks per wave", shape, nearest)

    def placement(self, shape: Shape) -> Placement:
        """Return one lane, 0123 3210 for every wave."""
        self.check(shape)
        return Placement.zigzag(shape)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return what the ranks take, tick by tick; a forward lasts one tick and a backward two."""
        self.check(shape)
        return [iter(actions) for actions in greedy_plainly(placement, (1, 2), lambda kind, chunk, i: (i, chunk))]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> Hanayo().order(Shape(1, 2, 2), Placement.zigzag(Shape(1, 2, 2))).to_text()
        '0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1\\n'
        """
        self.check(shape)
        return greedy_order(placement, (1, 2))
