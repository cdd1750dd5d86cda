"""V-Half: a V of two chunks whose passes lie closer together, for half the activations of 1F1B and some bubble."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.order import Action, F, I, PipelineOrder, W
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape
from simulator.schedules.v_chunks import VChunks

__all__ = ["VHalf"]


class VHalf(VChunks):
    """Every microbatch has its passes in fixed slots, six further on than the last; W takes free slots, oldest first."""

    name = "v_half"
    aliases: ClassVar[tuple[str, ...]] = ("v_half_pattern",)
    source = (
        "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362; "
        "github.com/sail-sg/zero-bubble-pipeline-parallelism, the repeated pattern without the reorder pass"
    )
    splits_backward = True

    def offsets(self, ranks: int, rank: int) -> tuple[int, int, int, int]:
        """Return the slots of F0, F1, I1 and I0 of microbatch 0; phase 0 is stage i, phase 1 stage 2p-1-i.

        >>> VHalf().offsets(4, 0)
        (0, 10, 14, 25)
        """
        p, i, gap = ranks, rank, 0 if ranks % 2 else 3
        return 2 * i, 3 * p - i - 2, 3 * p + gap + 2 * i - 1, 6 * p + gap - i - 2

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return, for every rank, what stands in each slot in turn; a free slot takes the oldest waiting W."""
        self.check(shape)
        p, m = shape.ranks, shape.microbatches

        def of_rank(rank: int) -> Iterator[Action]:
            low, high = rank, 2 * p - 1 - rank
            grid: dict[int, Action] = {}
            for i in range(m):
                passes = (F(low, i), F(high, i), I(high, i), I(low, i))
                for offset, action in zip(self.offsets(p, rank), passes, strict=True):
                    grid[offset + 6 * i] = action
            waiting: deque[Action] = deque()
            slot, left = 0, 2 * m
            while left:
                if slot in grid:
                    yield grid[slot]
                    if grid[slot].kind == "I":
                        waiting.append(W(grid[slot].chunk, grid[slot].microbatch))
                elif waiting:
                    yield waiting.popleft()
                    left -= 1
                slot += 1

        return [of_rank(rank) for rank in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> VHalf().order(Shape(1, 2, 2), Placement.zigzag(Shape(1, 2, 2))).to_text()
        '0F0,1F0,1I0,1W0,0I0,0W0,0F1,1F1,1I1,1W1,0I1,0W1\\n'
        """
        self.check(shape)
        p, m = shape.ranks, shape.microbatches
        number = np.arange(m)
        turn = np.tile(number, 4)
        rows = []
        for rank in range(p):
            slots = (np.array(self.offsets(p, rank))[:, None] + 6 * number).ravel()
            inputs = np.argsort(slots[2 * m :]) + 2 * m
            every = np.concatenate([slots, _free_slots(slots, slots[inputs])])
            source = np.concatenate([np.arange(4 * m), inputs])
            weight = np.arange(6 * m) >= 4 * m
            chosen = np.argsort(every)
            rows.append((source[chosen], weight[chosen]))
        source, weight = np.stack([s for s, _ in rows]), np.stack([w for _, w in rows])
        passes = source // m
        low = np.arange(p)[:, None]
        chunk = np.where((passes == 0) | (passes == 3), low, 2 * p - 1 - low)
        kind = np.where(weight, 3, np.where(passes < 2, 0, 2)).astype(np.int8)
        return PipelineOrder.from_grid(kind, chunk.astype(np.int32), turn[source].astype(np.int32))


def _free_slots(taken: NDArray[np.int64], waits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for actions that become ready after the slots `waits` (rising), the free slots that they fill in turn."""
    size = int(taken.max()) + 2 + len(waits)
    is_free = np.ones(size, np.bool_)
    is_free[taken] = False
    free = np.flatnonzero(is_free)
    number = np.arange(len(waits))
    earliest = np.searchsorted(free, waits, side="right") - number
    return free[np.maximum.accumulate(earliest) + number]
