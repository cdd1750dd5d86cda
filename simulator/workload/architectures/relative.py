"""Positions that act on the scores of attention: learned biases of a distance (T5), and products with projected sinusoids of it.

With H heads, T queries and K keys of a sequence, B sequences:

    relative_bias    scores + bias [H, T, K], the same for all sequences          Raffel et al., arXiv 1910.10683, section 2.1
    transformer_xl   scores + shift(queries x (R W)), R [K, h] sinusoids          Dai et al., arXiv 1901.02860, section 3.3
"""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.operator import Operator, Saved

__all__ = ["relative_bias", "transformer_xl"]


def relative_bias(p: Pieces, keys: int) -> list[Operator]:
    """Return what the bias adds: a pass over unfused scores, or what a fused kernel reads (and sums up backward)."""
    table = float(p.m.heads) * p.length * keys * p.e
    scores = table * p.sequences if p.style.attention == "unfused" else 0.0
    return [
        Operator(
            label="relative bias",
            work="memory_bound",
            split="tensor",
            read=scores + table,
            written=scores,
            backward_read=scores + table,
            backward_written=table,
            selective=True,
            launches=1 if scores else 0,
        )
    ]


def transformer_xl(p: Pieces, keys: int) -> list[Operator]:
    """Return the products with projected distances, the shift that lines them up, and the sum; the scores stand in memory."""
    m, e = p.m, p.e
    width = m.heads * m.head_dim
    maps = p.sequences * m.heads
    scores = float(maps) * p.length * keys * e
    none = Saved(name="", bytes=0.0, region="tensor")
    sinusoids = p.linear("distance projection", "column", width, m.hidden, none, False)
    distances = Saved(name="projected distances", bytes=float(keys) * width * e, region="tensor")
    return [
        replace(
            sinusoids,
            shape=(1, keys, width, m.hidden),
            parameters=width * (m.hidden + 2),
            selective=True,
        ),
        Operator(
            label="distance scores",
            work="gemm",
            split="heads",
            shape=(maps, p.length, keys, m.head_dim),
            has_weight=False,
            saved=(distances,),
            selective=True,
            backward_launches=2,
        ),
        Operator(
            label="shift and sum of scores",
            work="memory_bound",
            split="tensor",
            read=3 * scores,
            written=2 * scores,
            backward_read=2 * scores,
            backward_written=2 * scores,
            selective=True,
            launches=2,
            backward_launches=2,
        ),
    ]
