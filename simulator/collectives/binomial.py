"""The binomial tree: who has the message passes it on, so that those who have it double with every hop.

    hop 0: 0 -> 4     hop 1: 0 -> 2, 4 -> 6     hop 2: 0 -> 1, 2 -> 3, 4 -> 5, 6 -> 7

log2(n) hops for any kind with a root; broadcast and reduce move the whole message in each, scatter and gather ever
smaller (or larger) shares.
"""

from __future__ import annotations

from simulator.collectives.base import Phase, Transfer
from simulator.collectives.plain import PlainCollective, ceil_log2
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Binomial"]


class Binomial(PlainCollective):
    """broadcast, reduce, gather and scatter, from or to rank 0."""

    name = "binomial"
    aliases = ("binomial_tree",)
    kinds = ("broadcast", "reduce", "gather", "scatter")
    source = "Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005), section 4.3 (from memory, unverified)"

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return log2(n), rounded up."""
        return ceil_log2(place.ranks)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return a message per hop, or (n - 1) / n in all for gather and scatter."""
        n = place.ranks
        return (n - 1) / n if kind in ("gather", "scatter") else float(ceil_log2(n))

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the hops from the root out, or the same ones back to it; part r of a scatter belongs to rank r."""
        n, out = place.ranks, []
        inward, whole = kind in ("reduce", "gather"), kind in ("broadcast", "reduce")
        for bit in reversed(range(ceil_log2(n))):
            phase = []
            for low in range(0, n - (1 << bit), 2 << bit):
                high = low + (1 << bit)
                parts = (0,) if whole else tuple(range(high, min(high + (1 << bit), n)))
                share = 1.0 if whole else len(parts) / n
                ends = (high, low) if inward else (low, high)
                phase.append(
                    Transfer(
                        sources=ends[:1],
                        destinations=ends[1:],
                        parts=parts,
                        fraction=share,
                        combines=kind == "reduce",
                    )
                )
            out.append(tuple(phase))
        return tuple(reversed(out)) if inward else tuple(out)
