"""V-Half with the authors' reorder pass: the memory of the pattern, with less bubble at either end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.order import Action, PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape
from simulator.schedules.v_half import VHalf
from simulator.schedules.v_reorder import reordered, reordered_plainly

__all__ = ["VHalfReordered"]


class VHalfReordered(VHalf):
    """The slots of V-Half, reordered and squeezed; see `simulator.schedules.v_reorder`."""

    name = "v_half_reordered"
    aliases = ()
    source = (
        "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv:2405.15362, reordering; rule as in "
        "github.com/sail-sg/zero-bubble-pipeline-parallelism, zerobubble/scheduler/zbv_greedy.py"
    )

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return what stands in each slot in turn after the reorder pass."""
        self.check(shape)
        p, m = shape.ranks, shape.microbatches

        def of_rank(rank: int, said: list[tuple[int, int]]) -> Iterator[Action]:
            for kind, i in said:
                chunk = rank if kind in (0, 3, 5) else 2 * p - 1 - rank
                yield Action("FFIIWW"[kind], chunk, i)  # type: ignore[arg-type]

        said = reordered_plainly([self.offsets(p, rank) for rank in range(p)], m)
        return [of_rank(rank, row) for rank, row in enumerate(said)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> VHalfReordered().order(Shape(1, 2, 2), Placement.zigzag(Shape(1, 2, 2))).to_text()
        '0F0,1F0,1I0,1W0,0I0,0W0,0F1,1F1,1I1,0I1,1W1,0W1\\n'
        """
        self.check(shape)
        p = shape.ranks
        passes, microbatch = reordered([self.offsets(p, rank) for rank in range(p)], shape.microbatches)
        low = np.arange(p, dtype=np.int32)[:, None]
        chunk = np.where(np.array([True, False, False, True, False, True])[passes], low, 2 * p - 1 - low)
        return PipelineOrder.from_grid(np.array([0, 0, 2, 2, 3, 3], np.int8)[passes], chunk, microbatch)
