"""V-Min with the authors' reorder pass."""

from __future__ import annotations

from simulator.schedules.v_half_reordered import VHalfReordered
from simulator.schedules.v_min import VMin

__all__ = ["VMinReordered"]


class VMinReordered(VHalfReordered):
    """The slots of V-Min, reordered and squeezed; see `simulator.schedules.v_reorder`."""

    name = "v_min_reordered"

    def offsets(self, ranks: int, rank: int) -> tuple[int, int, int, int]:
        """Return the slots of F0, F1, I1 and I0 of microbatch 0, those of V-Min."""
        return VMin().offsets(ranks, rank)
