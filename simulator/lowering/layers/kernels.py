"""Rows of kernels that move bytes: norms, sums, activation functions, the look-up of the embedding and the loss."""

from __future__ import annotations

from simulator.errors import LayoutError
from simulator.lowering.layers.division import tensor_collective
from simulator.lowering.layers.embedding_matmul import look_up_by_product
from simulator.lowering.layers.joins import join_logits
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.rows import Rows
from simulator.partition.layout import PARTIAL, REPLICATE, Layout
from simulator.partition.propagate import seen_as_made
from simulator.partition.redistribute import redistribute
from simulator.partition.strategies.base import TENSOR
from simulator.partition.strategies.experts import EXPERT
from simulator.program.calls import Traffic
from simulator.workload.graph import Dim, Kernel, Lookup
from simulator.workload.operator import Operator

__all__ = ["kernel_backward", "kernel_forward"]

_NEXT = Dim("", 1)
"""Stands between the dimensions of two tensors."""
_REDUCED = ("maximum", "target", "sum")
"""What a cross-entropy finds over the vocabulary, one number per token each."""


def kernel_forward(ctx: LayerContext, rows: Rows, o: Operator, op: Kernel, phase: str) -> None:
    """Write a kernel, or several, and what sums up what each rank has found."""
    if op.after_exchange and not ctx.experts.sorts:
        return
    loss, name = op.role == "loss", _between_parts(ctx, op)
    _exchange(ctx, rows, o, op, phase)
    if loss and ctx.style.gathers_logits:
        join_logits(ctx, rows, o, op, phase)
    _row(ctx, rows, o, op, ("read", "written"), phase, o.launches)
    if isinstance(op, Lookup):
        look_up_by_product(ctx, rows, o, op, phase)
        ctx.collective(rows, _sums_rows(ctx, op), ctx.stream_bytes, phase, o.label)
    elif loss and not ctx.style.gathers_logits:
        reduced = op.outputs[0]
        for what in _REDUCED:
            ctx.collective(rows, name, reduced.bytes, phase, f"cross entropy {what}")


def kernel_backward(ctx: LayerContext, rows: Rows, o: Operator, op: Kernel) -> None:
    """Write a kernel's backward; of a look-up it scatters gradients into the rows of the table that the rank has."""
    if op.after_exchange and not ctx.experts.sorts:
        return
    fields = ("backward_read", "backward_written")
    if isinstance(op, Lookup):
        lie = ctx.layout.placement(op.outputs[0].dims)
        if _sums_rows(ctx, op):
            whole = tensor_collective(redistribute(lie, {**lie, TENSOR: REPLICATE}))
            ctx.collective(rows, whole, ctx.stream_bytes, "backward", o.label)
        look_up_by_product(ctx, rows, o, op, "backward")
        _row(ctx, rows, o, op, fields, "backward", o.backward_launches, part="weight")
        return
    _row(ctx, rows, o, op, fields, "backward", o.backward_launches, part="input")
    _exchange(ctx, rows, o, op, "backward")
    if o.sums_read:  # one of the norm's launches
        _row(
            ctx,
            rows,
            o,
            op,
            ("sums_read", ""),
            "backward",
            0,
            part="weight",
            label=f"{o.label} sums",
            access="norm sums",
        )
    if op.role == "loss" and ctx.style.gathers_logits:
        join_logits(ctx, rows, o, op, "backward")


def _sums_rows(ctx: LayerContext, op: Lookup) -> str:
    """The collective that sums the rows that each rank has found in its part of the table; "" where every rank has all of it."""
    if TENSOR not in ctx.layout.axes(op.weights[0].dims):
        return ""
    lie = ctx.layout.placement(op.outputs[0].dims)
    return tensor_collective(redistribute({**lie, TENSOR: PARTIAL}, lie))


def _between_parts(ctx: LayerContext, op: Kernel) -> str:
    """The collective of numbers that a loss finds over a vocabulary of which each rank has a part; "" where each has all of it.

    Raises:
        LayoutError: any other kernel reduces over a dimension of which a rank has a part.
    """
    divided = ctx.layout.axes(op.moves[0].dims).get(TENSOR)
    if divided not in op.reduces:
        return ""
    if op.role != "loss":
        raise LayoutError(
            f"layout {ctx.layout.name!r} divides {divided.name} of {op.inputs[0].name!r} on mesh axis {TENSOR!r}, over which operation "
            f"{op.label!r} sums. Way out: a layout that leaves {divided.name} whole."
        )
    return tensor_collective(redistribute({TENSOR: PARTIAL}, {}))


def _exchange(ctx: LayerContext, rows: Rows, o: Operator, op: Kernel, phase: str) -> None:
    """Bring operands to where a kernel needs them; backward, bring their gradients to where they come from."""
    if op.whole or isinstance(op, Lookup):
        return
    key = tuple(
        d.name for dims in (op.moves[0].dims, *(t.dims for t in (*op.inputs, *o.sources))) for d in (*dims, _NEXT)
    )
    if key not in ctx.layout.known:
        ctx.layout.known[key] = _moved_operands(ctx.layout, o, op)
    for place, forth, back in ctx.layout.known[key]:
        tensor = op.inputs[place]
        ctx.collective(rows, back if phase == "backward" else forth, tensor.bytes, phase, f"{o.label} {tensor.name}")


def _moved_operands(layout: Layout, o: Operator, op: Kernel) -> list[tuple[int, str, str]]:
    """Places of operands that lie otherwise than a kernel runs, with the collectives forward and backward.

    What lacks the dimension that ranks divide is needed whole by all of them, and each has a term of its gradient.  Dimensions of one rule
    lie alike: the kernel gives one another name.
    """
    divided, out = layout.axes(op.moves[0].dims).get(TENSOR), []
    for place, (seen, made) in enumerate(zip(op.inputs, o.sources, strict=True)):
        tensor = seen_as_made(layout, seen, made)
        if divided is not None and not layout.alike(layout.axes(tensor.dims).get(TENSOR), divided):
            lies = {TENSOR: layout.placement(tensor.dims)[TENSOR]}
            forth, back = redistribute(lies, {}), redistribute({TENSOR: PARTIAL}, lies)
            out.append((place, tensor_collective(forth), tensor_collective(back)))
    return out


def _moved(ctx: LayerContext, o: Operator, op: Kernel, what: str) -> float:
    """Bytes that a kernel moves on one rank: of all tensors together where they are divided alike, else of each."""
    if not what:
        return 0.0
    ways = ctx.moved_ways(op)
    if len(ways) == 1:
        return float(getattr(o, what)) / ways[0]
    return sum(moved.bytes(what) / each for moved, each in zip(op.moves, ways, strict=True))


def _row(
    ctx: LayerContext,
    rows: Rows,
    o: Operator,
    op: Kernel,
    fields: tuple[str, str],
    phase: str,
    launches: int,
    part: str = "",
    label: str = "",
    access: str = "",
) -> None:
    """Add a kernel; `fields`: what it reads and writes."""
    read, written = (_moved(ctx, o, op, name) for name in fields)
    access = access or ("scores backward" if op.access == "scores" and phase == "backward" else op.access or "layer")
    looped = op.per_expert * (ctx.experts.count // ctx.layout.ranks(EXPERT)) * (2 if phase == "backward" else 1)
    rows.add(
        label=label or o.label,
        work="memory_bound",
        call=Traffic(access),
        dtype=ctx.dtype,
        read=read,
        written=written,
        phase=phase,
        launches=launches + looped,
        part=part,
    )
