"""SlimPipe: 1F1B on many slices of equal tokens, for the activations of little more than one microbatch."""

from __future__ import annotations

from simulator.schedules.seq1f1b import Seq1F1B

__all__ = ["SlimPipe"]


class SlimPipe(Seq1F1B):
    """The order of Seq1F1B with two forwards of warm-up per later rank; ranks exchange attention work among slices.

    Slices have equal tokens, and what causal attention makes unequal between them is moved between ranks, so all take
    the same time.  The warm-up is the one whose peak is 1 + 2(p-1)/v microbatches, the figure we know for it.
    """

    name = "slimpipe"
    source = (
        "Li et al., SlimPipe, arXiv:2504.14519, abstract: uniform slices, 1F1B, activations of one microbatch, attention "
        "work moved between ranks; the length of the warm-up is from memory of its peak and was not read again"
    )
    hops = 2
