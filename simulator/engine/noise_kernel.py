"""What noise makes of the seconds of compute rows: one pass over rows and replicas, compiled by numba when first used."""

from __future__ import annotations

from simulator.compiled import compiled

__all__ = ["noisy_compute"]


@compiled()
def noisy_compute(  # type: ignore[no-untyped-def]
    rows, class_of, kernels, waiting, communication, square, adds, rank, microbatch, gpus, compute, lengths, inside, out
):
    """Fill rows of `out` [rows, replicas] with seconds; an empty array of factors means 1.

    kernels, waiting (for the host), communication, square (part of the kernels that grows with the square of the tokens):
    [classes, rows].  Kernels that grow hide more of the host's launches, unless the host's time comes on top (`adds`).
    """
    for place in range(len(rows)):
        seconds = out[rows[place]]
        owner, which = rank[place], microbatch[place]
        for d in range(len(class_of)):
            c = class_of[d]
            noisy, wait, talk = kernels[c, place], waiting[c, place], communication[c, place]
            hidden = noisy + wait
            if len(gpus):
                noisy *= gpus[owner, d]
            if len(compute):
                noisy *= compute[place, d]
            if len(lengths) and which >= 0:
                grown = lengths[which, d]
                noisy *= grown * (1.0 + square[c, place] * (grown - 1.0))
                talk *= grown
            if len(inside):
                talk *= inside[place, d]
            if adds[place]:
                noisy += wait
            elif wait > 0.0 and noisy < hidden:
                noisy = hidden
            seconds[d] = noisy + talk
