"""Rows of tensor-parallel code that is less joined than Megatron's: logits gathered whole, gate and up as products of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.lowering.rows import Rows
from simulator.workload.operator import Operator

if TYPE_CHECKING:
    from simulator.lowering.splitter import Splitter

__all__ = ["join_logits", "sum_input_gradients"]


def join_logits(split: Splitter, rows: Rows, o: Operator, phase: str) -> None:
    """Gather the logits of all tensor-parallel ranks and join their parts; backward each rank copies its own part out."""
    if split.t == 1:
        return
    logits = o.shape[1] * o.shape[2] * split.e
    if phase != "backward":
        split.collective(rows, "all_gather", logits, phase, "logits")
    moved = logits / split.t if phase == "backward" else logits
    rows.add(
        label="logits joined",
        work="memory_bound",
        dtype=split.dtype,
        read=moved,
        written=moved,
        phase=phase,
        part="input" if phase == "backward" else "",
    )


def sum_input_gradients(split: Splitter, rows: Rows, o: Operator, size: float) -> None:
    """Add the input gradients of separate products.

    Args:
        size: bytes of one of them.
    """
    sums = o.products - 1
    if sums:
        rows.add(
            label=f"{o.label} input gradients summed",
            work="memory_bound",
            dtype=split.dtype,
            read=2.0 * size * sums,
            written=size * sums,
            phase="backward",
            part="input",
            launches=sums,
        )
