"""Writes the rows of an operator on one GPU, forward or backward, by what kind of operation it is."""

from __future__ import annotations

from simulator.lowering.layers.attention import attention
from simulator.lowering.layers.exchange import swap_rows, wait_for
from simulator.lowering.layers.kernels import kernel_backward, kernel_forward
from simulator.lowering.layers.products import product_backward, product_forward
from simulator.lowering.layers.writer import Writer
from simulator.program.calls import Timed
from simulator.workload.graph import Attention, Exchange, HostWait, Kernel, Measured, Product

__all__ = ["write"]


def write(w: Writer) -> None:
    """Write the rows of an operator; backward those of its input gradient, then of its weight gradient."""
    match w.o.op:
        case Product() as op:
            product_backward(w, op) if w.backward else product_forward(w, op)
        case Attention() as op:
            attention(w, op)
        case Exchange() as op:
            swap_rows(w, op)
        case HostWait() as op:
            if not w.backward:
                wait_for(w, op)
        case Measured() as op:
            seconds = op.backward if w.backward else op.forward
            if seconds:
                w.rows.add(label=w.o.label, work="measured", call=Timed(seconds), dtype=w.ctx.dtype, phase=w.phase)
        case Kernel() as op:
            kernel_backward(w, op) if w.backward else kernel_forward(w, op)
