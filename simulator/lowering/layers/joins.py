"""Rows of tensor-parallel code that joins what others keep joined: gathered logits, gate and up as products of their own, activations
that arrive or are kept in parts."""

from __future__ import annotations

from simulator.lowering.layers.division import hops
from simulator.lowering.layers.rows import Rows
from simulator.lowering.layers.writer import Writer
from simulator.partition.redistribute import redistribute
from simulator.workload.graph import Kernel

__all__ = ["gather_pieces", "join_logits", "sum_input_gradients"]

_LIST, _PARTITIONED = (1, 1), (2, 3)
"""Passes (read, written) over a tensor that is gathered: torch.distributed.all_gather into a list of tensors fills a flat one and
copies the parts out of it; DeepSpeed clears a tensor before, and clones it behind."""


def gather_pieces(
    rows: Rows, what: str, size: float, group: tuple[str, ...], dtype: str, phase: str, partitioned: bool = True
) -> None:
    """Put a tensor together that every tensor-parallel rank holds a part of.

    Args:
        what: it is.
        size: of the whole [B].
        partitioned: by DeepSpeed's code; else by a list of tensors alone.
    """
    part = "" if phase == "forward" else "input"
    rows.sends(what, "all_gather", size, group, dtype, phase, part=part)
    read, written = _PARTITIONED if partitioned else _LIST
    rows.moves(f"{what} copies", dtype, read * size, written * size, phase, max(read, written), part)


def join_logits(w: Writer, op: Kernel) -> None:
    """Gather the logits of all tensor-parallel ranks and join their parts; backward each rank copies its own part out."""
    ctx = w.ctx
    given = op.inputs[0].dims
    lies = ctx.layout.placement(given)
    words = {axis for axis, d in ctx.layout.axes(given).items() if d in op.reduces}
    gathers = hops(ctx.layout, lies, redistribute(lies, {a: p for a, p in lies.items() if a not in words}))
    if not gathers:
        return
    logits = w.o.shape[1] * w.o.shape[2] * ctx.e
    if not w.backward:
        w.move("logits", gathers, logits)
    moved = logits / (ctx.ways(given) if w.backward else gathers[-1].ways)
    w.moves("logits joined", moved, moved)


def sum_input_gradients(w: Writer, size: float) -> None:
    """Add the input gradients of separate products: two at a time, or all in one kernel where additions are fused.

    Args:
        size: bytes of one of them.
    """
    sums = len(w.o.widths) - 1
    if sums:
        read, kernels = (sums + 1, 1) if w.ctx.style.fused_residual else (2 * sums, sums)
        w.moves(f"{w.o.label} input gradients summed", read * size, kernels * size, launches=kernels)
