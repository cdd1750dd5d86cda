"""The sum of a block's output and what went around it, with bias and dropout."""

from __future__ import annotations

from simulator.workload.blocks.norm import norm
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Keep, Kernel, Moves, Tensor

__all__ = ["block_end", "residual"]


def block_end(g: LayerBuilder, what: str, x: Tensor, stream: Tensor) -> Tensor:
    """Add the residual after attention or MLP, behind a norm where the model has one there; return the new stream."""
    if g.m.post_norms:
        x = norm(g, f"post {what} norm", x, cheap=False)
    return residual(g, f"{what} residual", x, stream)


def residual(g: LayerBuilder, label: str, x: Tensor, stream: Tensor) -> Tensor:
    """Add bias, dropout and residual addition after a product; return the new stream."""
    style, e = g.style, g.e
    dropout = style.dropout
    passes = 1 if style.fused_residual or not (dropout or g.m.linear_bias) else 2
    mask = 1.0 if dropout else 0.0
    moved = Moves(
        dims=stream.dims,
        read=2 * e * passes,
        written=e * passes + mask,
        backward_read=3 * e + mask if dropout else 2 * e,
        backward_written=2 * e if dropout else e,
    )
    out = g.tensor(f"{label} output", *stream.dims)
    masks = (g.tensor(f"{label} dropout mask", *stream.dims, element=1.0, role="mask"),) if dropout else ()
    g.add(
        Kernel(
            label=label,
            inputs=(x, stream),
            outputs=(out, *masks),
            keeps=tuple(Keep(tensor=t) for t in masks),
            again=(out.name,),
            role="residual",
            moves=(moved,),
            launches=2 * passes - 1 if dropout else passes,
            backward_launches=2 if dropout else 1,
        )
    )
    return out
