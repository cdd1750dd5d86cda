"""V-Min: a V of two chunks whose passes lie as close together as they can, for a third of the activations of 1F1B."""

from __future__ import annotations

from simulator.schedules.v_half import VHalf

__all__ = ["VMin"]


class VMin(VHalf):
    """The rule of V-Half with other slots; with unequal times its bubble grows with the number of microbatches."""

    name = "v_min"
    aliases = ("v_min_pattern",)

    def offsets(self, ranks: int, rank: int) -> tuple[int, int, int, int]:
        """Return the slots of F0, F1, I1 and I0 of microbatch 0.

        >>> VMin().offsets(4, 0)
        (0, 7, 8, 15)
        """
        p, i, gap = ranks, rank, 0 if ranks % 3 else 2
        return i, 2 * p - i - 1, 2 * p + gap + i, 4 * p + gap - i - 1
