"""ZB-V: a V of two chunks per rank with the backward split; no bubble at equal times, within the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from simulator.schedules.arrange import by_phrases
from simulator.schedules.order import Action, PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape
from simulator.schedules.v_chunks import VChunks

__all__ = ["ZBV"]


class ZBV(VChunks):
    """Phase 0 is stage i, phase 1 is stage 2p-1-i.  Below 2p-1 microbatches it is that of 2p-1 without the surplus."""

    name = "zbv"
    aliases = ("ZBVZeroBubble", "zb_v")
    source = (
        "Qi et al., ICLR 2024, arXiv:2401.10241 (ZB-V); order as in PyTorch 2.13 "
        "torch.distributed.pipelining, ScheduleZBVZeroBubble"
    )
    splits_backward = True

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return, for every rank, the words that it says, each with the next microbatch of its kind and phase."""
        self.check(shape)
        p, m = shape.ranks, shape.microbatches
        most = max(m, 2 * p - 1)

        def words(rank: int) -> Iterator[str]:
            done = 2 * p - rank - 1
            yield from ["F0"] * (2 * (p - rank) - 1)
            yield from ["F1", "F0"] * rank
            yield from ["F1", "I1", "W1"] * (p - rank)
            for turn in range(most - p):
                if done + turn < most:
                    yield "F0"
                yield from ["I0", "W0", "F1", "I1", "W1"]
            yield from ["I0", "I1"] * rank
            yield from ["I0", "W0"] * (p - rank)
            yield from ["W1"] * rank
            yield from ["W0"] * rank

        def of_rank(rank: int) -> Iterator[Action]:
            turns = {f"{kind}{phase}": count() for kind in "FIW" for phase in "01"}
            for word in words(rank):
                i = next(turns[word])
                if i < m:
                    yield Action(word[0], (rank, 2 * p - 1 - rank)[int(word[1])], i)  # type: ignore[arg-type]

        return [of_rank(rank) for rank in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> ZBV().order(Shape(1, 2, 2), Placement.zigzag(Shape(1, 2, 2))).to_text()
        '0F0,1F0,1I0,1W0,0F1,0I0,0W0,1F1,1I1,1W1,0I1,0W1\\n'
        """
        self.check(shape)
        p, m = shape.ranks, shape.microbatches
        most = max(m, 2 * p - 1)
        rank = np.arange(p)
        left = most - (2 * p - rank - 1)
        phrases = [
            (2 * (p - rank) - 1, "F0"),
            (rank, "F1 F0"),
            (p - rank, "F1 I1 W1"),
            (left, "F0 I0 W0 F1 I1 W1"),
            (most - p - left, "I0 W0 F1 I1 W1"),
            (rank, "I0 I1"),
            (p - rank, "I0 W0"),
            (rank, "W1"),
            (rank, "W0"),
        ]
        return by_phrases(phrases, [rank, 2 * p - 1 - rank], m)
