"""Products cut in pieces, so that tensor-parallel collectives run beside them (Megatron-LM's --tp-comm-overlap).

gather 0 | product 0 | product 1 | product 2            product 0 | product 1 | product 2 |
         | gather 1  | gather 2  |                                | scatter 0 | scatter 1 | scatter 2
"""

from __future__ import annotations

import functools

from simulator.lowering.layers.writer import Writer

__all__ = ["write_in_pieces"]


def write_in_pieces(
    w: Writer, label: str, shape: tuple[int, int, int, int], order: str, gathered: float, scattered: float, narrow: bool
) -> None:
    """Write a GEMM cut along its rows: each piece's gather runs beside the product before it, its scatter beside the next.

    So one piece of a collective stays exposed, and what takes longer than the product beside it; smaller products fill the
    multiprocessors less well.  PyTorch's async TP sends each rank its piece and adds up what arrived from all by a kernel behind the last
    (torch/distributed/_symmetric_memory, _pipelined_produce_and_all2all).

    All pieces are one call of the host, which starts a product and a message for each (NVIDIA/TransformerEngine
    common/comm_gemm_overlap/comm_gemm_overlap.cpp: the loop over pieces is the library's): they count with the first product.

    Args:
        gathered, scattered: bytes of the whole collective before and after the product; 0 = none.
    """
    ctx = w.ctx
    b, m, n, k = shape
    pieces = min(ctx.splits, m)
    started, before = pieces * (1 + bool(gathered) + bool(scattered)), -1
    for i in range(pieces):
        piece, message = f"{label} piece {i}", functools.partial(w.collective, always=True, launches=0)
        if gathered:
            message(piece, "all_gather", gathered / pieces, beside=before)
        size, launches = m // pieces + (i < m % pieces), 0 if i else started
        before = w.product(piece, (b, size, n, k), order, narrow=narrow, launches=launches)
        if scattered:
            following = before + 2 if i + 1 < pieces else -1
            message(piece, "reduce_scatter", scattered / pieces, beside=following)
    if scattered and ctx.copied:
        w.moves(f"{label} sum of pieces", scattered, scattered / ctx.tensor)
