"""Bruck: few hops for any number of ranks, by sending on what was received.

all_gather, step k: rank i sends all it has to rank i - 2^k: what it holds doubles.  all_to_all, step k: everything whose
way is long (the k-th bit of the distance is set) moves 2^k ranks on; each byte travels about log2(n) / 2 times.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.base import Phase, Transfer
from simulator.collectives.plain import PlainCollective, ceil_log2
from simulator.collectives.rounds import Pattern, Round
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Bruck"]


class Bruck(PlainCollective):
    """all_gather and all_to_all in log2(n) hops."""

    name = "bruck"
    kinds = ("all_gather", "all_to_all")
    source = "Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE TPDS 8 (1997) (abstract read, formulas derived)"

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return log2(n), rounded up."""
        return ceil_log2(place.ranks)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return (n - 1) / n for all_gather; for all_to_all the set bits of all distances, over n."""
        n = place.ranks
        return (n - 1) / n if kind == "all_gather" else sum(k.bit_count() for k in range(n)) / n

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the steps; part a x n + b of all_to_all is what rank a has for rank b."""
        n, out = place.ranks, []
        for bit in range(ceil_log2(n)):
            phase = []
            for i in range(n):
                if kind == "all_gather":
                    to, parts = i - (1 << bit), tuple((i + k) % n for k in range(_held(n, bit)))
                else:
                    to = i + (1 << bit)
                    far = [k for k in range(n) if k >> bit & 1]
                    start = [(i - k % (1 << bit)) % n for k in far]
                    parts = tuple(a * n + (a + k) % n for a, k in zip(start, far, strict=True))
                phase.append(Transfer(sources=(i,), destinations=(to % n,), parts=parts, fraction=_share(kind, n, bit)))
            out.append(tuple(phase))
        return tuple(out)

    def patterns(self, kind: str, place: GroupPlacement) -> tuple[Round, ...]:
        """Return the steps as arrays."""
        n = place.ranks
        ranks, sign = np.arange(n), -1 if kind == "all_gather" else 1
        return tuple(
            (Pattern.pairs(ranks, (ranks + sign * (1 << bit)) % n, _share(kind, n, bit)), 1)
            for bit in range(ceil_log2(n))
        )


def _held(n: int, bit: int) -> int:
    """Return the parts that a rank sends in all_gather: all it has, in the last step what is still missing."""
    return min(1 << bit, n - (1 << bit))


def _share(kind: str, n: int, bit: int) -> float:
    return (_held(n, bit) if kind == "all_gather" else sum(k >> bit & 1 for k in range(n))) / n
