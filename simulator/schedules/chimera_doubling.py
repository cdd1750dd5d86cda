"""Chimera with forward doubling: forwards take two microbatches at once, so that they last as long as a backward."""

from __future__ import annotations

import numpy as np

from simulator.schedules.chimera import Chimera, backwards_twice
from simulator.schedules.order import Action, B, F, PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["ChimeraDoubling"]


class ChimeraDoubling(Chimera):
    """The order of Chimera for half as many microbatches; F stands for two at once, B for two in turn."""

    name = "chimera_doubling"
    aliases = ("chimera_forward_doubling",)
    source = "Li and Hoefler, SC 2021, arXiv:2107.06925, forward doubling"
    group = 2

    def stands_for(self, action: Action) -> tuple[Action, ...]:
        """Return one forward of two microbatches, or two backwards.

        >>> [str(a) for a in ChimeraDoubling().stands_for(B(0, 1))]
        ['0B2', '0B3']
        """
        if action.kind == "F":
            return (F(action.chunk, 2 * action.microbatch, count=2),)
        return B(action.chunk, 2 * action.microbatch), B(action.chunk, 2 * action.microbatch + 1)

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> doubling, shape = ChimeraDoubling(), Shape(2, 4)
        >>> doubling.order(shape, doubling.placement(shape)).to_text().splitlines()[0]
        '0F0+1,1F2+3,1B2,1B3,0B0,0B1'
        """
        plain = super().order(shape, placement)
        offsets, place, second = backwards_twice(plain)
        kind = plain.kind[place]
        return PipelineOrder(
            offsets, kind, plain.chunk[place], 2 * plain.microbatch[place] + second, count=(2 - kind).astype(np.int8)
        )
