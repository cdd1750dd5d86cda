"""Writes the rows of an operator on one GPU, forward or backward, by what kind of operation it is."""

from __future__ import annotations

from simulator.lowering.layers.attention import attention
from simulator.lowering.layers.exchange import swap_rows, wait_for
from simulator.lowering.layers.kernels import kernel_backward, kernel_forward
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.products import product_backward, product_forward
from simulator.lowering.layers.rows import Rows
from simulator.program.calls import Timed
from simulator.workload.graph import Attention, Exchange, HostWait, Kernel, Measured, Product
from simulator.workload.operator import Operator

__all__ = ["write_backward", "write_forward"]


def write_forward(ctx: LayerContext, rows: Rows, o: Operator, phase: str = "forward") -> None:
    """Write the forward rows of an operator; `phase` "recompute" where it runs again."""
    match o.op:
        case Product() as op:
            product_forward(ctx, rows, o, op, phase)
        case Attention() as op:
            attention(ctx, rows, o, op, phase)
        case Exchange() as op:
            swap_rows(ctx, rows, o, op, phase, op.outward)
        case HostWait() as op:
            wait_for(ctx, rows, o, op, phase)
        case Measured() as op:
            _measured(ctx, rows, o, op.forward, phase)
        case Kernel() as op:
            kernel_forward(ctx, rows, o, op, phase)


def write_backward(ctx: LayerContext, rows: Rows, o: Operator) -> None:
    """Write the backward rows of an operator: input gradient, then weight gradient."""
    match o.op:
        case Product() as op:
            product_backward(ctx, rows, o, op)
        case Attention() as op:
            attention(ctx, rows, o, op, "backward")
        case Exchange() as op:
            swap_rows(ctx, rows, o, op, "backward", not op.outward)
        case Measured() as op:
            _measured(ctx, rows, o, op.backward, "backward")
        case Kernel() as op:
            kernel_backward(ctx, rows, o, op)


def _measured(ctx: LayerContext, rows: Rows, o: Operator, seconds: float, phase: str) -> None:
    """Write what takes as long as was measured."""
    if seconds:
        rows.add(label=o.label, work="measured", call=Timed(seconds), dtype=ctx.dtype, phase=phase)
