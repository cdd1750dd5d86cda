"""Rows of a fused attention kernel, and what the ranks that share its sequences exchange."""

from __future__ import annotations

import math

from simulator.errors import LayoutError
from simulator.lowering.layers.casts import add_casts
from simulator.lowering.layers.context import ring_attention, swap_heads
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.scores import scores_left
from simulator.lowering.layers.writer import Writer
from simulator.partition.strategies.context import QUERIES, attention_exchange
from simulator.program.calls import AttentionCall
from simulator.workload.graph import Attention, Dim
from simulator.workload.operator import Operator
from simulator.workload.precision import precision_named

__all__ = ["attention", "exchange_keys", "heads_held"]

_QUANTISES = {"te_mxfp8": precision_named("mxfp8")}
"""Kernels that take operands narrower than the activations -> as which precision quantises them."""


def attention(w: Writer, op: Attention) -> None:
    """Write a fused attention row and what the ranks that share its sequences exchange; flops count the full product.

    Under context parallelism every rank has equal work: with a causal mask its queries see half of the keys on average
    (a ring: context.py).  With a window keys are gathered first: the rings of frameworks know no windows (Transformer Engine).
    Packed documents are sequences of their own; they share the tokens evenly.  A kernel of narrow operands has queries, keys and values
    quantised before it, and before its backward pass the gradient of its output (Transformer Engine, mxfp8_quantize_fast_path).
    """
    ctx, o = w.ctx, w.o
    factor, launches = (10.0, o.backward_launches) if w.backward else (4.0, o.launches)
    _, heads, length, width = o.shape
    batch = [axis for axis, d in ctx.layout.axes(op.inputs[0].dims).items() if d.name == "batch"]
    sequences = own = o.shape[0] // math.prod(ctx.layout.ranks(axis) for axis in batch)
    heads, groups = mine = heads_held(ctx, o, op.inputs[0].dims), heads_held(ctx, o, op.inputs[1].dims)
    keys, mask, window = op.keys, "causal" if op.causal else "full", 0
    narrow = op.causal and 0 < op.window < keys
    if narrow:
        mask, window = "chunk" if op.chunked else "window", op.window
    flops = factor * sequences * heads * float(length) * keys * width
    if o.peers > 1 and ctx.inner > 1:
        heads, groups, length = heads // ctx.inner, groups // ctx.inner, length * ctx.inner
    apart = o.peers > ctx.inner and op.causal
    ring = apart and ctx.exchange in ("ring", "hybrid") and not narrow
    if apart and not ring:
        keys, mask, window = max(1, round(scores_left(keys, op.window, op.chunked) / keys)), "full", 0
    if ctx.attended:
        documents, seen = max(1, round(sequences * op.keys / ctx.attended)), max(1, round(ctx.attended))
        flops *= ctx.attended / op.keys
        sequences, length = documents, max(2, round(sequences * length / documents))
        keys = max(1, round(scores_left(seen, op.window, op.chunked) / seen)) if op.causal else seen
        mask, window = "full", 0
    moved = sequences * length * heads * width * ctx.e
    kv = own * op.keys * groups * width * ctx.e
    if o.peers > 1 and ctx.inner > 1:
        swap_heads(w, *mine)
    if op.kernel in _QUANTISES:
        given = moved if w.backward else moved + 2 * kv
        add_casts(w.rows, o.label, given / ctx.e, _QUANTISES[op.kernel], phase=w.phase)
    if ring:
        ring_attention(w, op, (sequences, heads, length, width), max(1, mine[1] // ctx.inner), launches)
        return
    row = w.attends(
        o.label,
        (sequences, heads, length, width),
        AttentionCall(op.kernel, mask, window, groups, keys),
        flops,
        launches,
        read=3 * moved + 2 * kv if w.backward else moved + 2 * kv,
        written=moved + 2 * kv if w.backward else moved,
    )
    if o.peers > ctx.inner:
        size = 2.0 * own * op.keys * max(1, mine[1] // ctx.inner) * width * ctx.e
        _exchange(w, -1 if narrow else row, size)


def heads_held(ctx: LayerContext, o: Operator, dims: tuple[Dim, ...]) -> int:
    """Return how many heads of a tensor of these dimensions a rank has.

    Raises:
        LayoutError: the ranks have parts of its tokens, and attention needs all keys.
    """
    heads, parts = next(d for d in dims if "heads" in (d.name, d.serves)), 1
    for axis, divided in ctx.layout.axes(dims).items():
        if axis in ctx.layout.tensor and divided == heads:
            parts *= ctx.layout.parts(heads, axis)
        elif axis in ctx.layout.tensor and divided.name != "batch":
            raise LayoutError(
                f"layout {ctx.layout.name!r} leaves {heads.name} whole, so mesh axis {axis!r} divides {divided.name} of the tensors of "
                f"operation {o.label!r}, of which every rank needs all. Way out: sequence_parallel = false, or a layout that divides "
                "heads."
            )
    return heads.size // parts


def exchange_keys(w: Writer, groups: int, width: int, beside: int) -> None:
    """Keys and values of the other ranks' tokens, for attention that keeps its scores.

    Args:
        groups: key/value heads of a rank; `width`: of one.
        beside: the product that a ring hides them beside.
    """
    ctx = w.ctx
    if w.o.peers > ctx.inner:
        _exchange(w, beside, 2.0 * ctx.tokens * w.o.peers * groups * width * ctx.e)


def _exchange(w: Writer, beside: int, size: float) -> None:
    """Gather keys and values; backward their gradients are added, too."""
    groups, exchange = w.ctx.groups, attention_exchange(QUERIES)
    hidden = beside if w.ctx.exchange in ("ring", "hybrid") else -1
    for name in (exchange.keys, exchange.gradients) if w.backward else (exchange.keys,):
        w.sends(f"{w.o.label} keys and values", name, size, groups.ring or groups.context, beside=hidden)
