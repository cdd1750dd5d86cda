"""Looped zero bubble: interleaved 1F1B with the backward split and weight gradients in the gaps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.arrange import by_slots
from simulator.schedules.interleaved_1f1b import Interleaved1F1B, round_size, visits, visits_plainly
from simulator.schedules.order import Action, F, I, PipelineOrder, W
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["InterleavedZeroBubble"]


class InterleavedZeroBubble(Interleaved1F1B):
    """Chunks in the turns of interleaved 1F1B; rank i keeps (v-1)g + p-1-i visits ahead, W lags i visits."""

    name = "zb_interleaved"
    aliases = ("InterleavedZeroBubble", "looped_zb1p")
    source = "PyTorch 2.13 torch.distributed.pipelining, ScheduleInterleavedZeroBubble; idea: arXiv:2401.10241"
    splits_backward = True
    instead = "zb_h1"

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return the visits ahead, then F, I and, i visits later, W in turn, then the other W, for every rank i."""
        self.check(shape)
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        g = round_size(m, p)
        chunks = visits_plainly(shape)

        def of_rank(rank: int) -> Iterator[Action]:
            forwards = iter([F(turn * p + rank, i) for turn, i in chunks])
            inputs = [I((v - 1 - turn) * p + rank, i) for turn, i in chunks]
            weights = iter([W(a.chunk, a.microbatch) for a in inputs])
            for _ in range(min((v - 1) * g + p - 1 - rank, m * v)):
                yield next(forwards)
            for number, action in enumerate(inputs):
                yield from [a for a in (next(forwards, None),) if a]
                yield action
                if number >= rank:
                    yield next(weights)
            yield from weights

        return [of_rank(rank) for rank in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays: turn k has F(k + ahead), I(k), W(k - i) in this order.

        >>> InterleavedZeroBubble().order(Shape(1, 1, 2), Placement.linear(Shape(1, 1, 2))).to_text()
        '0F0,1F0,1I0,1W0,0I0,0W0\\n'
        """
        self.check(shape)
        p, m, v = shape.ranks, shape.microbatches, shape.chunks_per_rank
        g = round_size(m, p)
        rank = np.arange(p, dtype=np.int32)[:, None]
        visit = np.arange(m * v, dtype=np.int32)
        forwards, weights = 3 * (visit - ((v - 1) * g + p - 1 - rank)), 3 * (visit + rank) + 2
        inputs = np.broadcast_to(3 * visit + 1, forwards.shape)
        turn, microbatch = visits(shape)
        chunk = np.concatenate([turn, v - 1 - turn, v - 1 - turn]) * p + rank
        slots = np.concatenate([forwards, inputs, weights], axis=1)
        return by_slots(slots, np.repeat([0, 2, 3], m * v), chunk, np.tile(microbatch, 3))
