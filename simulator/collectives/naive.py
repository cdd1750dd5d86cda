"""The naive all_reduce: all send everything to rank 0, which adds up and sends the sum to all.

Rank 0's port takes n - 1 messages in and then n - 1 out, where each port of a ring takes 2 (n - 1) / n both ways at once:
n / 2 times as much each way, and n times as long, because the two ways are used one after the other.  Between nodes the sum leaves by
the cards of all receivers' rails (PXN), so the way out costs less there.
"""

from __future__ import annotations

from simulator.collectives.base import Phase, Transfer
from simulator.collectives.plain import PlainCollective
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Naive"]


class Naive(PlainCollective):
    """all_reduce through the port of rank 0, as one process that owns the parameters does it."""

    name = "naive"
    aliases = ("gather_broadcast",)
    kinds = ("all_reduce",)
    source = "what ring all_reduce is measured against: Patarasuk and Yuan, JPDC 69 (2009); counts derived here"

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return 2: to rank 0 and back."""
        return 2

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return n - 1 messages in, then n - 1 out."""
        return 2.0 * (place.ranks - 1)

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return what goes to rank 0, and the sum back."""
        inward = tuple(
            Transfer(sources=(rank,), destinations=(0,), parts=(0,), fraction=1.0, combines=True)
            for rank in range(1, place.ranks)
        )
        return inward, tuple(transfer.back() for transfer in inward)
