"""The sum of a block's output and what went around it, with bias and dropout."""

from __future__ import annotations

from simulator.workload.blocks.norm import norm
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Keep, Moves, Tensor

__all__ = ["block_end", "residual"]


def block_end(g: LayerBuilder, what: str, x: Tensor, stream: Tensor) -> Tensor:
    """Add the residual after attention or MLP, behind a norm where the model has one there; return the new stream."""
    if g.m.post_norms:
        x = norm(g, f"post {what} norm", x, cheap=False)
    return residual(g, f"{what} residual", x, stream)


def residual(g: LayerBuilder, label: str, x: Tensor, stream: Tensor) -> Tensor:
    """Add bias, dropout and residual addition after a product; return the new stream."""
    style, e, s = g.style, g.e, g.stream
    dropout, wide = style.dropout, s > e
    passes = 1 if style.fused_residual or not dropout else 2  # a bias is added by the product
    mask = 1.0 if dropout else 0.0
    # the sum of both gradients of a wider stream is cast for the block's
    cast, apart = (e if wide else 0.0), wide and not style.fused_residual
    moved = Moves(
        dims=stream.dims,
        read=2 * e * (passes - 1) + e + s,
        written=e * (passes - 1) + s + mask,
        backward_read=2 * s + (s if apart else 0.0) + (e + mask if dropout else 0.0),
        backward_written=s + cast + (e if dropout else 0.0),
    )
    out = g.tensor(f"{label} output", *stream.dims, element=s)
    masks = (g.tensor(f"{label} dropout mask", *stream.dims, element=1.0, role="mask"),) if dropout else ()
    return g.kernel(
        label,
        (x, stream),
        (out, *masks),
        moved,
        keeps=tuple(Keep(tensor=t) for t in masks),
        again=(out.name,),
        role="residual",
        launches=2 * passes - 1 if dropout else passes,
        backward_launches=(2 if dropout else 1) + apart,
    )
