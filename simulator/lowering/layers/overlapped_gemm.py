"""Products cut in pieces, so that tensor-parallel collectives run beside them (Megatron-LM's --tp-comm-overlap).

gather 0 | product 0 | product 1 | product 2            product 0 | product 1 | product 2 |
         | gather 1  | gather 2  |                                | scatter 0 | scatter 1 | scatter 2
"""

from __future__ import annotations

import functools

from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.rows import Rows

__all__ = ["write_in_pieces"]


def write_in_pieces(
    ctx: LayerContext,
    rows: Rows,
    label: str,
    shape: tuple[int, int, int, int],
    order: str,
    phase: str,
    gathered: float,
    scattered: float,
    **more: object,
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
    b, m, n, k = shape
    pieces = min(ctx.splits, m)
    started, before = pieces * (1 + bool(gathered) + bool(scattered)), -1
    message = functools.partial(ctx.collective, always=True, launches=0)
    for i in range(pieces):
        if gathered:
            message(rows, "all_gather", gathered / pieces, phase, f"{label} piece {i}", beside=before)
        size, launches = m // pieces + (i < m % pieces), 0 if i else started
        before = ctx.product(rows, f"{label} piece {i}", (b, size, n, k), order, phase, launches=launches, **more)
        if scattered:
            following = before + 2 if i + 1 < pieces else -1
            message(rows, "reduce_scatter", scattered / pieces, phase, f"{label} piece {i}", beside=following)
    if scattered and ctx.copied:
        rows.moves(f"{label} sum of pieces", ctx.dtype, scattered, scattered / ctx.tensor, phase)
