"""Rows of kernels that move bytes: norms, sums, activation functions, the look-up of the embedding and the loss."""

from __future__ import annotations

import math

from simulator.errors import LayoutError
from simulator.lowering.layers.context import exchange_heads
from simulator.lowering.layers.division import Hops, hops
from simulator.lowering.layers.embedding_matmul import look_up_by_product
from simulator.lowering.layers.gradients import accumulate
from simulator.lowering.layers.joins import join_logits
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.rows import Rows
from simulator.partition.layout import PARTIAL, REPLICATE, Layout, Placement, Shard
from simulator.partition.propagate import look_up_along, seen_as_made, wanted
from simulator.partition.redistribute import redistribute
from simulator.partition.strategies.base import TENSOR
from simulator.partition.strategies.experts import EXPERT
from simulator.program.calls import Traffic
from simulator.units import FP32
from simulator.workload.graph import Dim, HeadSwap, Kernel, Lookup, count
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
    loss, parts = op.role == "loss", _between_parts(ctx, op)
    _exchange(ctx, rows, o, op, phase)
    if loss and ctx.style.gathers_logits:
        join_logits(ctx, rows, o, op, phase)
    if not loss:
        _statistics(ctx, rows, o, op, parts, phase)
    _cross(ctx, rows, op, phase)
    _row(ctx, rows, o, op, ("read", "written"), phase, o.launches)
    if isinstance(op, HeadSwap):
        exchange_heads(ctx, rows, o, op, phase)
    if isinstance(op, Lookup):
        look_up_by_product(ctx, rows, o, op, phase)
        ctx.move(rows, _found_rows(ctx, op), op.outputs[0].bytes, phase, o.label)
    elif loss and not ctx.style.gathers_logits:
        for what in _REDUCED:
            ctx.move(rows, parts, op.outputs[0].bytes, phase, f"cross entropy {what}")


def kernel_backward(ctx: LayerContext, rows: Rows, o: Operator, op: Kernel) -> None:
    """Write a kernel's backward; of a look-up it scatters gradients into the rows of the table that the rank has."""
    if op.after_exchange and not ctx.experts.sorts:
        return
    fields = ("backward_read", "backward_written")
    if isinstance(op, Lookup):
        if op.frozen:
            return
        if _found_rows(ctx, op):
            lies, wants = (
                ctx.layout.placed(op.outputs[0]),
                wanted(look_up_along(ctx.layout, op.weights[0], op.outputs[0]), op.outputs[0]),
            )
            ctx.move(rows, hops(ctx.layout, lies, redistribute(lies, wants)), op.outputs[0].bytes, "backward", o.label)
        look_up_by_product(ctx, rows, o, op, "backward")
        _row(ctx, rows, o, op, fields, "backward", o.backward_launches, part="weight")
        if not op.by_product:
            _table_gradient(ctx, rows, o, op)
        return
    if op.role != "loss":
        _statistics(ctx, rows, o, op, _between_parts(ctx, op), "backward")
    _row(ctx, rows, o, op, fields, "backward", o.backward_launches)
    _cross(ctx, rows, op, "backward")
    if isinstance(op, HeadSwap):
        exchange_heads(ctx, rows, o, op, "backward")
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


def _table_gradient(ctx: LayerContext, rows: Rows, o: Operator, op: Lookup) -> None:
    """Zeros of the whole table, into which gradients are scattered (ATen embedding_dense_backward), and what adds it to its buffer."""
    words = float(count(ctx.layout.local_tensor(op.weights[0]).dims))
    made = op.outputs[0].element or ctx.e
    rows.moves(f"{o.label} gradient zeros", ctx.dtype, 0.0, made * words, "backward", launches=0, part="weight")
    accumulate(ctx, rows, o.label, words, made)


def _found_rows(ctx: LayerContext, op: Lookup) -> Hops:
    """The collectives that bring the rows that each rank has found in its part of the table to where they lie."""
    found = wanted(look_up_along(ctx.layout, op.weights[0], op.outputs[0]), op.outputs[0], result=True)
    return hops(ctx.layout, found, redistribute(found, ctx.layout.placed(op.outputs[0])))


def _between_parts(ctx: LayerContext, op: Kernel) -> Hops:
    """The collectives of numbers that a kernel finds over dimensions of which each rank has a part; none where each has all of them.

    Raises:
        LayoutError: it needs more of them than sums, which it says how many it finds.
    """
    axes = ctx.layout.axes(op.moves[0].dims)
    over = [axis for axis, divided in axes.items() if divided in op.reduces and axis in ctx.layout.tensor]
    if over and op.role != "loss" and not op.sums:
        what = axes[over[0]].name
        raise LayoutError(
            f"layout {ctx.layout.name!r} divides {what} of {op.inputs[0].name!r} on mesh axis {over[0]!r}, over which operation "
            f"{op.label!r} sums. Way out: a layout that leaves {what} whole."
        )
    terms: dict[str, Placement] = {
        axis: PARTIAL if axis in over else Shard(divided.name) for axis, divided in axes.items()
    }
    return hops(ctx.layout, terms, redistribute(terms, {a: p for a, p in terms.items() if p != PARTIAL}))


def _statistics(ctx: LayerContext, rows: Rows, o: Operator, op: Kernel, parts: Hops, phase: str) -> None:
    """The sums that a norm finds over a width of which each rank has a part: a pass over what it reads, and what adds them up, in fp32."""
    if not parts:
        return
    backward = phase == "backward"
    elements = float(count(op.moves[0].dims))
    rows.moves(
        f"{o.label} sums of parts",
        ctx.dtype,
        elements * op.inputs[0].element * (2.0 if backward else 1.0) / ctx.moved_ways(op)[0],
        0.0,
        phase,
        call=Traffic("layer"),
        launches=len(op.weights),
    )
    reduced = elements / math.prod(d.size for d in op.reduces)
    ctx.move(rows, parts, FP32 * op.sums * reduced, phase, f"{o.label} sums")


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
        ctx.move(rows, back if phase == "backward" else forth, tensor.bytes, phase, f"{o.label} {tensor.name}")


def _cross(ctx: LayerContext, rows: Rows, op: Kernel, phase: str) -> None:
    """Make tokens of the columns in which a kernel's last input comes, or columns of its gradient; without sequence parallelism all ranks
    gather them.

    Ranks' columns are put side by side behind an all_to_all, and cut apart before that of the gradients, whose tokens are put one behind
    the other (NVIDIA/NeMo parallel_adapters.py, _All2AllHp2Sp).
    """
    if not op.crosses or ctx.layout.ranks(TENSOR) == 1:
        return
    made = op.inputs[-1]
    size, backward = made.bytes / ctx.ways(made.dims), phase == "backward"
    part = "input" if backward else ""
    if TENSOR not in ctx.layout.axes(made.dims):
        if not backward:
            ctx.collective(rows, "all_gather", size, phase, made.name)
        return
    ctx.collective(rows, "all_to_all", size, phase, made.name, axes=(TENSOR,), part=part)
    passes = 2 if backward else 1
    rows.moves(f"{made.name} side by side", ctx.dtype, passes * size, passes * size, phase, launches=passes)


def _moved_operands(layout: Layout, o: Operator, op: Kernel) -> list[tuple[int, Hops, Hops]]:
    """Places of operands that lie otherwise than a kernel runs, with the collectives forward and backward.

    What lacks the dimension that ranks divide is needed whole by all of them, and each has a term of its gradient.  Dimensions of one rule
    lie alike: the kernel gives one another name.
    """
    runs, out = {a: d for a, d in layout.axes(op.moves[0].dims).items() if a in layout.tensor}, []
    for place, (seen, made) in enumerate(zip(op.inputs, o.sources, strict=True)):
        tensor = seen_as_made(layout, seen, made)
        on = layout.axes(tensor.dims)
        unlike = [axis for axis, divided in runs.items() if not layout.alike(on.get(axis), divided)]
        if unlike:
            lies = {axis: p for axis, p in layout.placement(tensor.dims).items() if axis in layout.tensor}
            wants: dict[str, Placement] = {axis: REPLICATE if axis in unlike else p for axis, p in lies.items()}
            terms: dict[str, Placement] = {axis: PARTIAL if axis in unlike else p for axis, p in lies.items()}
            forth, back = redistribute(lies, wants), redistribute(terms, lies)
            out.append((place, hops(layout, lies, forth), hops(layout, terms, back)))
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
    part: str | None = None,
    label: str = "",
    access: str = "",
) -> None:
    """Add a kernel; `fields`: what it reads and writes."""
    read, written = (_moved(ctx, o, op, name) for name in fields)
    access = access or ("scores backward" if op.access == "scores" and phase == "backward" else op.access or "layer")
    if op.after_exchange and ctx.style.exchange_sorts and ctx.experts.kind == "once_per_node":
        access = "exchange"
    if op.sums_rows == ("backward" if phase == "backward" else "forward"):
        access = "sorted" if ctx.style.sorts_row_sums else "atomic"
    mine = ctx.experts.count // ctx.layout.ranks(EXPERT)
    launches = launches * (mine if op.looped else 1) + op.per_expert * mine * (2 if phase == "backward" else 1)
    rows.moves(label or o.label, ctx.dtype, read, written, phase, call=Traffic(access), launches=launches, part=part)
