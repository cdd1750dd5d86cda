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
from simulator.lowering.layers.writer import Writer
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


def kernel_forward(w: Writer, op: Kernel) -> None:
    """Write a kernel, or several, and what sums up what each rank has found."""
    ctx = w.ctx
    if op.after_exchange and not ctx.experts.sorts:
        return
    loss, parts = op.role == "loss", _between_parts(ctx, op)
    _exchange(w, op)
    if loss and ctx.style.gathers_logits:
        join_logits(w, op)
    if not loss:
        _statistics(w, op, parts)
    _cross(w, op)
    _row(w, op, ("read", "written"), w.o.launches)
    if isinstance(op, HeadSwap):
        exchange_heads(w, op)
    if isinstance(op, Lookup):
        look_up_by_product(w, op)
        w.move(w.o.label, _found_rows(ctx, op), op.outputs[0].bytes)
    elif loss and not ctx.style.gathers_logits:
        for what in _REDUCED:
            w.move(f"cross entropy {what}", parts, op.outputs[0].bytes)


def kernel_backward(w: Writer, op: Kernel) -> None:
    """Write a kernel's backward; of a look-up it scatters gradients into the rows of the table that the rank has."""
    ctx, o = w.ctx, w.o
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
            w.move(o.label, hops(ctx.layout, lies, redistribute(lies, wants)), op.outputs[0].bytes)
        look_up_by_product(w, op)
        _row(w, op, fields, o.backward_launches, part="weight")
        if not op.by_product:
            _table_gradient(w, op)
        return
    if op.role != "loss":
        _statistics(w, op, _between_parts(ctx, op))
    _row(w, op, fields, o.backward_launches)
    _cross(w, op)
    if isinstance(op, HeadSwap):
        exchange_heads(w, op)
    _exchange(w, op)
    if o.sums_read:  # one of the norm's launches
        _row(w, op, ("sums_read", ""), 0, part="weight", label=f"{o.label} sums", access="norm sums")
    if op.role == "loss" and ctx.style.gathers_logits:
        join_logits(w, op)


def _table_gradient(w: Writer, op: Lookup) -> None:
    """Zeros of the whole table, into which gradients are scattered (ATen embedding_dense_backward), and what adds it to its buffer."""
    words = float(count(w.ctx.layout.local_tensor(op.weights[0]).dims))
    made = op.outputs[0].element or w.ctx.e
    w.moves(f"{w.o.label} gradient zeros", 0.0, made * words, launches=0, part="weight")
    accumulate(w, w.o.label, words, made)


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


def _statistics(w: Writer, op: Kernel, parts: Hops) -> None:
    """The sums that a norm finds over a width of which each rank has a part: a pass over what it reads, and what adds them up, in fp32."""
    if not parts:
        return
    elements = float(count(op.moves[0].dims))
    w.moves(
        f"{w.o.label} sums of parts",
        elements * op.inputs[0].element * (2.0 if w.backward else 1.0) / w.ctx.moved_ways(op)[0],
        0.0,
        call=Traffic("layer"),
        launches=len(op.weights),
    )
    reduced = elements / math.prod(d.size for d in op.reduces)
    w.move(f"{w.o.label} sums", parts, FP32 * op.sums * reduced)


def _exchange(w: Writer, op: Kernel) -> None:
    """Bring operands to where a kernel needs them; backward, bring their gradients to where they come from."""
    ctx, o = w.ctx, w.o
    if op.whole or isinstance(op, Lookup):
        return
    key = tuple(
        d.name for dims in (op.moves[0].dims, *(t.dims for t in (*op.inputs, *o.sources))) for d in (*dims, _NEXT)
    )
    if key not in ctx.layout.known:
        ctx.layout.known[key] = _moved_operands(ctx.layout, o, op)
    for place, forth, back in ctx.layout.known[key]:
        tensor = op.inputs[place]
        w.move(f"{o.label} {tensor.name}", back if w.backward else forth, tensor.bytes)


def _cross(w: Writer, op: Kernel) -> None:
    """Make tokens of the columns in which a kernel's last input comes, or columns of its gradient; without sequence parallelism all ranks
    gather them.

    Ranks' columns are put side by side behind an all_to_all, and cut apart before that of the gradients, whose tokens are put one behind
    the other (NVIDIA/NeMo parallel_adapters.py, _All2AllHp2Sp).
    """
    ctx = w.ctx
    if not op.crosses or ctx.layout.ranks(TENSOR) == 1:
        return
    made = op.inputs[-1]
    size = made.bytes / ctx.ways(made.dims)
    if TENSOR not in ctx.layout.axes(made.dims):
        if not w.backward:
            w.collective(made.name, "all_gather", size)
        return
    w.collective(made.name, "all_to_all", size, axes=(TENSOR,), part=w.part)
    passes = 2 if w.backward else 1
    w.moves(f"{made.name} side by side", passes * size, passes * size, launches=passes)


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
    w: Writer,
    op: Kernel,
    fields: tuple[str, str],
    launches: int,
    part: str | None = None,
    label: str = "",
    access: str = "",
) -> None:
    """Add a kernel; `fields`: what it reads and writes."""
    ctx = w.ctx
    read, written = (_moved(ctx, w.o, op, name) for name in fields)
    access = access or ("scores backward" if op.access == "scores" and w.backward else op.access or "layer")
    if op.after_exchange and ctx.style.exchange_sorts and ctx.experts.kind == "once_per_node":
        access = "exchange"
    if op.sums_rows == ("backward" if w.backward else "forward"):
        access = "sorted" if ctx.style.picks_rows == "index" else "atomic"
    mine = ctx.experts.count // ctx.layout.ranks(EXPERT)
    launches = launches * (mine if op.looped else 1) + op.per_expert * mine * (2 if w.backward else 1)
    w.moves(label or w.o.label, read, written, call=Traffic(access), launches=launches, part=part)
