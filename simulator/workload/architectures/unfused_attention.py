"""Attention that keeps its scores in memory: scores, softmax, dropout and context as separate kernels."""

from __future__ import annotations

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.operator import Operator, Saved

__all__ = ["unfused"]


def unfused(p: Pieces, operands: tuple[Saved, ...], keys: int, bias: list[Operator], label: str) -> list[Operator]:
    """Return the operators of the core.

    A softmax that is not fused works in fp32; bytes per score, e = bytes of an element, 1 for the mask:

        forward   cast e, 4; masked fill 4 + 1, 4; softmax 4, 4; cast 4, e       reads e + 13    writes 12 + e
        backward  cast e, 4; softmax 8, 4; masked fill 4 + 1, 4; cast 4, e       reads e + 17    writes 12 + e

    Backward of the transposition: gradients of queries, keys and values joined, 3 passes; those of the first two times the scale
    of the scores (the derivative of torch.baddbmm is a product and a multiplication), 2.
    A fused one keeps the format of the products: forward e, e; backward 2 e, e.  By reductions (XLA's fusions end where a sum over
    a row does) it is three kernels forward and two backward: 3 e, e; backward 4 e, e.

    Args:
        operands: queries, keys and values as they are kept.
        keys: that each sequence of queries meets.
        bias: what is added to the scores before the softmax.
        label: what its operators' names begin with.
    """
    m, e, s = p.m, p.e, p.length
    maps = p.sequences * m.heads
    scores = float(maps) * s * keys
    drop = p.style.dropout
    fused = p.style.fused_softmax
    passes = 3 if fused and p.style.softmax_by_reductions else 1
    kernels = (passes, 2 if passes > 1 else 1) if fused else (4, 4)
    saved = [Saved(name=f"{label}softmax output", bytes=scores * e, region="tensor", droppable=True)]
    operators = [
        Operator(
            label=f"{label}attention scores",
            work="gemm",
            split="heads",
            shape=(maps, s, keys, m.head_dim),
            has_weight=False,
            kv_heads=m.kv_heads,
            peers=p.peers,
            saved=operands[:2],
            selective=True,
            backward_launches=2,
        ),
        *bias,
        Operator(
            label=f"{label}softmax",
            work="memory_bound",
            split="tensor",
            access="scores" if fused and passes == 1 else "",
            read=scores * (passes * e if fused else e + 13),
            written=scores * (e if fused else e + 12),
            backward_read=scores * (2 * kernels[1] * e if fused else e + 17),
            backward_written=scores * (e if fused else e + 12),
            saved=tuple(saved),
            launches=kernels[0],
            backward_launches=kernels[1],
            selective=True,
        ),
    ]
    if drop:
        operators.append(
            Operator(
                label=f"{label}attention dropout",
                work="memory_bound",
                split="tensor",
                read=scores * e,
                written=scores * (e + 1),
                backward_read=scores * (e + 1),
                backward_written=scores * e,
                saved=(
                    Saved(name=f"{label}attention dropout mask", bytes=scores, region="tensor", droppable=True),
                    Saved(name=f"{label}attention dropout output", bytes=scores * e, region="tensor", droppable=True),
                ),
                selective=True,
            )
        )
    x = p.t * m.heads * m.value_head_dim * e
    operators.append(
        Operator(
            label=f"{label}attention context",
            work="gemm",
            split="heads",
            shape=(maps, s, m.value_head_dim, keys),
            has_weight=False,
            saved=operands[2:],
            selective=True,
            backward_launches=2,
        )
    )
    operators.append(
        Operator(
            label=f"{label}attention transpose",
            work="memory_bound",
            split="tensor",
            read=x,
            written=x,
            backward_read=5 * x,
            backward_written=5 * x,
            backward_launches=5,
            selective=True,
        )
    )
    return operators
