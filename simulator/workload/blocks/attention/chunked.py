"""Attention over chunks of queries and of keys, no more of whose scores ever stand than those of one chunk of each.

Of n keys in chunks of about sqrt(n), and queries in chunks of 1,024:

    for each chunk of queries                          a scan, whose results go straight into the output
        for each chunk of keys                         a checkpointed scan: it runs again in the backward
            scores                                     1,024 x sqrt(n)
            weights = exp(scores - their maximum)      1,024 x sqrt(n), and their sums
            summary = weights x values                 1,024 x width
        output = summaries rescaled to one maximum, added up, over the sum of the weights

Beside queries, keys, values and output, linear in n, stand 1,024 sqrt(n) (2 + width + 2) numbers in fp32 of every head, and as many of
their gradients: O(sqrt(n)).  All scores are computed, also those that a mask hides, each twice in a training step; and every chunk
starts kernels of its own, (n / 1,024) sqrt(n) times each.
Source: Rabe and Staats, "Self-attention does not need O(n^2) memory", arXiv 2112.05682, sections 3 and 4 and figure 1 (chunk sizes:
query_chunk_size = 1024; "a chunk size of sqrt(n) for the keys and values").  Kernels are those that a compiler makes of figure 1, or,
without a fused softmax, those of its single operations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Moves, Tensor

__all__ = ["QUERIES", "chunked", "key_chunk"]

QUERIES = 1024
"""Queries of a chunk."""
_WIDE = 4.0
"""Bytes of a score, and of all that is made of it."""


class _Passes(NamedTuple):
    """Kernels between scores and weights: bytes per score forward and backward, and how many they are; and around the summaries."""

    read: float
    written: float
    backward_read: float
    backward_written: float
    launches: int
    backward_launches: int
    joins: int


_FUSED = _Passes(2 * _WIDE, _WIDE, 2 * _WIDE, _WIDE, 2, 1, 3)
"""The maximum; exponentials with their sum.  Backward: weights times what arrives for weights and sum."""
_PLAIN = _Passes(4 * _WIDE, 2 * _WIDE, 3 * _WIDE, 2 * _WIDE, 4, 2, 6)
"""Maximum, difference, exponentials, sum.  Backward: a sum and a product."""


def key_chunk(keys: int) -> int:
    """Return the keys of a chunk: the divisor of their number that lies nearest to its root, the larger one of two.

    >>> key_chunk(16384), key_chunk(8192), key_chunk(1500), key_chunk(7)
    (128, 128, 50, 7)
    """
    low = next(size for size in range(math.isqrt(keys), 0, -1) if keys % size == 0)
    return keys // low


def chunked(
    g: LayerBuilder, given: tuple[Tensor, Tensor, Tensor], operands: tuple[Keep, ...], keys: int, label: str
) -> Tensor:
    """Add the operations of the core; return its output.

    Args:
        given: queries, keys and values; `operands`: as they are kept.
        keys: that each sequence of queries meets.
        label: what its operations' names begin with.
    """
    q, k, v = given
    passes = _FUSED if g.style.fused_softmax else _PLAIN
    size = key_chunk(keys)
    chunks, near = Dim("key_chunks", keys // size), Dim("keys", size)
    scans = math.ceil(g.sequence.size / QUERIES)
    turns = scans * chunks.size
    scores = g.part(f"{label}scores", g.batch, g.heads, g.sequence, chunks, near, turns=turns)
    weights = g.part(f"{label}weights", *scores.dims, turns=turns)
    sums = g.part(f"{label}maxima and sums", *scores.dims[:-1], turns=scans, element=2 * _WIDE)
    summaries = g.part(f"{label}summaries", *g.tokens, g.heads, chunks, g.value_dim, turns=scans)
    out = g.tensor(f"{label}attention output", *g.tokens, g.heads, g.value_dim)
    far = (g.batch, chunks, near)
    g.product(
        f"{label}attention scores",
        (q, k.view(*far, *k.dims[2:])),
        scores,
        *operands[:2],
        reads_keys=True,
        launches=turns,
        backward_launches=2 * turns,
    )
    g.kernel(
        f"{label}exponentials",
        (scores,),
        (weights, sums),
        Moves(
            dims=scores.dims,
            read=passes.read,
            written=passes.written,
            backward_read=passes.backward_read,
            backward_written=passes.backward_written,
        ),
        reduces=(near,),
        launches=passes.launches * turns,
        backward_launches=passes.backward_launches * turns,
    )
    g.product(
        f"{label}attention context",
        (weights, v.view(*far, *v.dims[2:])),
        summaries,
        *operands[2:],
        reads_keys=True,
        launches=turns,
        backward_launches=2 * turns,
    )
    moved = Moves(dims=summaries.dims, read=_WIDE, backward_read=_WIDE, backward_written=_WIDE)
    return g.kernel(
        f"{label}summaries joined",
        (summaries, sums),
        (out,),
        moved,
        Moves(dims=out.dims, written=g.e, backward_read=g.e),
        launches=passes.joins * scans,
        backward_launches=passes.joins * scans,
    )
