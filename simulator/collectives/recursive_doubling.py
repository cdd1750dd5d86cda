"""Recursive doubling: in step k everybody exchanges all it has with the rank whose number differs in bit k.

    ranks      0   1   2   3
    step 0     0 - 1   2 - 3      afterwards pairs agree
    step 1     0 - 2   1 - 3      afterwards all four agree

log2(n) hops, the least there can be; but all_reduce moves the whole message in each, so it is for small messages.  When
n is no power of two, as many ranks as there are too many first hand their message to a neighbour and wait for the end.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.base import Phase, Transfer
from simulator.collectives.plain import PlainCollective
from simulator.collectives.rounds import Pattern, Round
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["RecursiveDoubling", "core_of", "fold", "fold_rounds"]


class RecursiveDoubling(PlainCollective):
    """all_reduce of any number of ranks, all_gather of 2^k."""

    name = "recursive_doubling"
    kinds = ("all_reduce", "all_gather")
    source = "Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005), sections 4.1 and 4.5 (from memory, unverified)"

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """all_gather: only for 2^k ranks."""
        return kind in self.kinds and (kind == "all_reduce" or place.ranks == len(core_of(place.ranks)))

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return log2 of the ranks, and 2 more when ranks are left over."""
        core = len(core_of(place.ranks))
        return core.bit_length() - 1 + 2 * (core < place.ranks)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return (n - 1) / n for all_gather, a message per hop for all_reduce."""
        return (place.ranks - 1) / place.ranks if kind == "all_gather" else float(self.hops(kind, place))

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the exchanges; of all_gather, rank i has gathered all ranks whose bits above the k-th are its own."""
        core, out = core_of(place.ranks), []
        for bit in range(len(core).bit_length() - 1):
            phase = []
            for i, rank in enumerate(core):
                start = i >> bit << bit
                parts = tuple(range(start, start + (1 << bit))) if kind == "all_gather" else (0,)
                share = len(parts) / place.ranks if kind == "all_gather" else 1.0
                phase.append(_exchange(rank, core[i ^ (1 << bit)], parts, share, kind == "all_reduce"))
            out.append(tuple(phase))
        return fold(place.ranks, tuple(out), (0,))

    def patterns(self, kind: str, place: GroupPlacement) -> tuple[Round, ...]:
        """Return the exchanges as arrays."""
        core, n = np.array(core_of(place.ranks)), place.ranks
        out: list[Round] = []
        for bit in range(len(core).bit_length() - 1):
            share = (1 << bit) / n if kind == "all_gather" else 1.0
            out.append((Pattern.pairs(core, core[np.arange(len(core)) ^ (1 << bit)], share), 1))
        return fold_rounds(n, tuple(out))


def core_of(ranks: int) -> tuple[int, ...]:
    """Return the 2^k ranks that exchange; every other of the first few stands aside.

    >>> core_of(6)
    (1, 3, 4, 5)
    """
    core = 1 << (ranks.bit_length() - 1)
    extra = ranks - core
    return tuple(2 * i + 1 if i < extra else i + extra for i in range(core))


def fold(ranks: int, phases: tuple[Phase, ...], parts: tuple[int, ...]) -> tuple[Phase, ...]:
    """Return the phases of the core with a first and a last one, in which those who stand aside give and receive."""
    aside = ranks - len(core_of(ranks))
    if not aside:
        return phases
    give = tuple(_exchange(2 * i, 2 * i + 1, parts, 1.0, True) for i in range(aside))
    return (give, *phases, tuple(transfer.back() for transfer in give))


def fold_rounds(ranks: int, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
    """Return what `fold` does, of phases as arrays."""
    aside = 2 * np.arange(ranks - len(core_of(ranks)))
    if not len(aside):
        return rounds
    return ((Pattern.pairs(aside, aside + 1, 1.0), 1), *rounds, (Pattern.pairs(aside + 1, aside, 1.0), 1))


def _exchange(source: int, destination: int, parts: tuple[int, ...], share: float, combines: bool) -> Transfer:
    return Transfer(sources=(source,), destinations=(destination,), parts=parts, fraction=share, combines=combines)
