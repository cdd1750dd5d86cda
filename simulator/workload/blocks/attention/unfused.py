"""Attention that keeps its scores in memory: scores, softmax, dropout and context as separate kernels.

A softmax that is not fused works in fp32; bytes per score, e = bytes of an element (all heads share one mask):

    forward   cast e, 4; masked fill 4, 4; softmax 4, 4; cast 4, e       reads e + 12    writes 12 + e
    backward  cast e, 4; softmax 8, 4; masked fill 4, 4; cast 4, e       reads e + 16    writes 12 + e

Backward of the transposition: gradients of queries, keys and values joined, 3 passes; those of the first two times the scale
of the scores (the derivative of torch.baddbmm is a product and a multiplication), 2.
It keeps its fp32 output for its backward, and the 16-bit copy for the product's.
A fused one keeps the format of the products: forward e, e; backward 2 e, e.  By reductions (XLA's fusions end where a sum over
a row does) it is three kernels forward and two backward: 3 e, e; backward 4 e, e.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Moves, Tensor

__all__ = ["unfused"]

Bias = Callable[[LayerBuilder, Tensor, Tensor | None, int], Tensor]


def unfused(
    g: LayerBuilder,
    given: tuple[Tensor, Tensor, Tensor],
    operands: tuple[Keep, ...],
    keys: int,
    bias: Bias | None,
    label: str,
) -> Tensor:
    """Add the operations of the core; return its output.

    Args:
        given: queries, keys and values; `operands`: as they are kept.
        keys: that each sequence of queries meets.
        bias: adds what is added to the scores before the softmax.
        label: what its operations' names begin with.
    """
    q, k, v = given
    e, far = g.e, Dim("keys", keys)
    scores = g.tensor(f"{label}scores", g.batch, g.heads, g.sequence, far)
    g.product(
        f"{label}attention scores", (q, k.view(g.batch, far, *k.dims[2:])), scores, *operands[:2], reads_keys=True
    )
    weights = _softmax(g, bias(g, q, scores, keys) if bias else scores, label)
    if g.style.dropout:
        weights = _dropout(g, weights, label)
    out = g.tensor(f"{label}context", *g.tokens, g.heads, g.value_dim)
    g.product(
        f"{label}attention context",
        (weights, v.view(g.batch, far, *v.dims[2:])),
        out,
        *operands[2:],
        *(() if g.style.fused_softmax or g.style.dropout else (Keep(tensor=weights),)),
        reads_keys=True,
    )
    moved = replace(out, name=f"{label}attention output")
    return g.kernel(
        f"{label}attention transpose",
        (out,),
        (moved,),
        Moves(dims=out.dims, read=e, written=e, backward_read=5 * e, backward_written=5 * e),
        backward_launches=5,
    )


def _softmax(g: LayerBuilder, scores: Tensor, label: str) -> Tensor:
    e, fused = g.e, g.style.fused_softmax
    passes = 3 if fused and g.style.softmax_by_reductions else 1
    kernels = (passes, 2 if passes > 1 else 1) if fused else (4, 4)
    out = replace(scores, name=f"{label}softmax output")
    wide = () if fused else (replace(scores, name=f"{label}softmax output in fp32", element=4.0),)
    moved = Moves(
        dims=scores.dims,
        read=passes * e if fused else e + 12,
        written=e if fused else e + 12,
        backward_read=2 * kernels[1] * e if fused else e + 16,
        backward_written=e if fused else e + 12,
    )
    return g.kernel(
        f"{label}softmax",
        (scores,),
        (out, *wide),
        moved,
        keeps=tuple(Keep(tensor=t) for t in wide or (out,)),
        role="softmax",
        reduces=(scores.dims[-1],),
        access="scores" if fused and passes == 1 else "",
        launches=kernels[0],
        backward_launches=kernels[1],
    )


def _dropout(g: LayerBuilder, weights: Tensor, label: str) -> Tensor:
    e = g.e
    out = replace(weights, name=f"{label}attention dropout output")
    mask = g.tensor(f"{label}attention dropout mask", *weights.dims, element=1.0, role="mask")
    return g.kernel(
        f"{label}attention dropout",
        (weights,),
        (out, mask),
        Moves(dims=weights.dims, read=e, written=e + 1, backward_read=e + 1, backward_written=e),
        keeps=(Keep(tensor=mask), Keep(tensor=out)),
    )
