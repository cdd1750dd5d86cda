"""Chimera with backward halving: backwards take half a microbatch, so that they last as long as a forward."""

from __future__ import annotations

import numpy as np

from simulator.schedules.chimera import Chimera, backwards_twice
from simulator.schedules.order import Action, B, PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["ChimeraHalving"]


class ChimeraHalving(Chimera):
    """The order of Chimera; B stands for two halves, each passed on as soon as it is done."""

    name = "chimera_halving"
    aliases = ("chimera_backward_halving",)
    source = "Li and Hoefler, SC 2021, arXiv:2107.06925, backward halving"

    def stands_for(self, action: Action) -> tuple[Action, ...]:
        """Return the forward, or two halves of the backward.

        >>> [str(a) for a in ChimeraHalving().stands_for(B(0, 1))]
        ['0B1.1/2', '0B1.2/2']
        """
        if action.kind == "F":
            return (action,)
        return tuple(B(action.chunk, action.microbatch, part=part, parts=2) for part in (0, 1))

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> halving, shape = ChimeraHalving(), Shape(2, 2)
        >>> halving.order(shape, halving.placement(shape)).to_text().splitlines()[0]
        '0F0,1F1,1B1.1/2,1B1.2/2,0B0.1/2,0B0.2/2'
        """
        plain = super().order(shape, placement)
        offsets, place, second = backwards_twice(plain)
        kind = plain.kind[place]
        return PipelineOrder(
            offsets,
            kind,
            plain.chunk[place],
            plain.microbatch[place],
            part=second.astype(np.int16),
            parts=1 + kind.astype(np.int16),
        )
