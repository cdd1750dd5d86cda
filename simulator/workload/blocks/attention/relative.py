"""Positions that act on the scores of attention: learned biases of a distance (T5), and products with projected sinusoids of it.

With H heads, T queries and K keys of a sequence, B sequences:

    relative_bias    scores + bias [H, T, K], the same for all sequences          Raffel et al., arXiv 1910.10683, section 2.1
    transformer_xl   scores + shift(queries x (R W)), R [K, h] sinusoids          Dai et al., arXiv 1901.02860, section 3.3
"""

from __future__ import annotations

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Moves, Tensor

__all__ = ["relative_bias", "transformer_xl"]


def relative_bias(g: LayerBuilder, q: Tensor, scores: Tensor | None, keys: int) -> Tensor:
    """Add the bias: a pass over unfused scores, or what a fused kernel reads (and sums up backward).

    Args:
        q: queries.
        scores: where they stand in memory; None = nowhere.
    """
    e = g.e
    table = (g.heads, g.sequence, Dim("keys", keys))
    dims = (g.batch, *table) if scores else table
    out = g.tensor("biased scores" if scores else "biases", *dims)
    return g.kernel(
        "relative bias",
        (scores,) if scores else (),
        (out,),
        Moves(dims=table, read=e, backward_read=e, backward_written=e),
        *((Moves(dims=dims, read=e, written=e, backward_read=e),) if scores else ()),
        launches=1 if scores else 0,
    )


def transformer_xl(g: LayerBuilder, q: Tensor, scores: Tensor | None, keys: int) -> Tensor:
    """Add the products with projected distances, the shift that lines them up, and the sum; the scores stand in memory."""
    e = g.e
    far, lengths = Dim("keys", keys), Dim("distances", keys)
    sinusoids = g.given("sinusoids", lengths, g.hidden)
    distances = g.tensor("projected distances", lengths, g.heads, g.head_dim)
    g.linear(
        "distance projection",
        sinusoids,
        (distances,),
        (g.hidden,),
        keep=None,
        bias=False,
        vectors=tuple(g.weight(f"{what} bias", g.heads, g.head_dim, role="bias") for what in ("content", "distance")),
        sums_bias=False,
    )
    shifted = g.tensor("distance scores", g.batch, g.heads, g.sequence, far)
    g.product(
        "distance scores",
        (q, distances.view(g.batch, far, g.heads, g.head_dim)),
        shifted,
        Keep(tensor=distances, droppable=False),
    )
    out = g.tensor("biased scores", *shifted.dims)
    return g.kernel(
        "shift and sum of scores",
        (shifted, *((scores,) if scores else ())),
        (out,),
        Moves(dims=out.dims, read=3 * e, written=2 * e, backward_read=2 * e, backward_written=2 * e),
        launches=2,
        backward_launches=2,
    )
