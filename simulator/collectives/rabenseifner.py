"""Recursive halving and doubling: sums of ever smaller halves, then copies of ever larger ones.

    step 0: halves with the neighbour    step 1: quarters with the next pair    ...    and the same way back

As few bytes as a ring and only 2 log2(n) hops; the largest exchanges are with the nearest rank, so that most bytes stay
inside a node.  When n is no power of two, ranks that are too many hand their message to a neighbour first.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.base import Phase, Transfer
from simulator.collectives.plain import PlainCollective
from simulator.collectives.recursive_doubling import core_of, fold, fold_rounds
from simulator.collectives.rounds import Pattern, Round
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Rabenseifner"]


class Rabenseifner(PlainCollective):
    """all_reduce of any number of ranks, reduce_scatter of 2^k."""

    name = "rabenseifner"
    aliases = ("recursive_halving_doubling", "halving_doubling")
    kinds = ("all_reduce", "reduce_scatter")
    source = "Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005), section 4.5 (from memory, unverified)"

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """reduce_scatter: only for 2^k ranks."""
        return kind in self.kinds and (kind == "all_reduce" or place.ranks == len(core_of(place.ranks)))

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return 2 log2(n), half of it for reduce_scatter, and 2 more when ranks are left over."""
        core = len(core_of(place.ranks))
        return _ways(kind) * (core.bit_length() - 1) + 2 * (core < place.ranks)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return 2 (n - 1) / n, half of it for reduce_scatter, and 2 more when ranks are left over."""
        core = len(core_of(place.ranks))
        return _ways(kind) * (core - 1) / core + 2 * (core < place.ranks)

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the halvings, and the doublings back; after bit k a rank holds parts that agree with it up to k."""
        core = core_of(place.ranks)
        size, halve = len(core), []
        for bit in range(size.bit_length() - 1):
            phase = []
            for i, rank in enumerate(core):
                other = i ^ (1 << bit)
                parts = tuple(range(other % (2 << bit), size, 2 << bit))
                share = len(parts) / size
                phase.append(
                    Transfer(sources=(rank,), destinations=(core[other],), parts=parts, fraction=share, combines=True)
                )
            halve.append(tuple(phase))
        if kind == "reduce_scatter":
            return tuple(halve)
        back = [tuple(transfer.back() for transfer in phase) for phase in reversed(halve)]
        return fold(place.ranks, (*halve, *back), tuple(range(size)))

    def patterns(self, kind: str, place: GroupPlacement) -> tuple[Round, ...]:
        """Return the exchanges as arrays."""
        core = np.array(core_of(place.ranks))
        halve: list[Round] = []
        for bit in range(len(core).bit_length() - 1):
            halve.append((Pattern.pairs(core, core[np.arange(len(core)) ^ (1 << bit)], 0.5 / (1 << bit)), 1))
        if kind == "reduce_scatter":
            return tuple(halve)
        return fold_rounds(place.ranks, (*halve, *reversed(halve)))


def _ways(kind: str) -> int:
    return 2 if kind == "all_reduce" else 1
