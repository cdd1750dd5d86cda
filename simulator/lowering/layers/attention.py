"""Rows of a fused attention kernel, and what the ranks that share its sequences exchange."""

from __future__ import annotations

import math

from simulator.errors import LayoutError
from simulator.lowering.layers.casts import add_casts
from simulator.lowering.layers.context import ring_attention, swap_heads
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.rows import Rows
from simulator.lowering.layers.scores import scores_left
from simulator.partition.strategies.context import QUERIES, attention_exchange
from simulator.program.calls import AttentionCall
from simulator.workload.graph import Attention, Dim
from simulator.workload.operator import Operator
from simulator.workload.precision import precision_named

__all__ = ["attention", "exchange_keys", "heads_held"]

_QUANTISES = {"te_mxfp8": precision_named("mxfp8")}
"""Kernels that take operands narrower than the activations -> as which precision quantises them."""


def attention(ctx: LayerContext, rows: Rows, o: Operator, op: Attention, phase: str) -> None:
    """Write a fused attention row and what the ranks that share its sequences exchange; flops count the full product.

    Under context parallelism every rank has equal work: with a causal mask its queries see half of the keys on average
    (a ring: context.py).  With a window keys are gathered first: the rings of frameworks know no windows (Transformer Engine).
    Packed documents are sequences of their own; they share the tokens evenly.  A kernel of narrow operands has queries, keys and values
    quantised before it, and before its backward pass the gradient of its output (Transformer Engine, mxfp8_quantize_fast_path).
    """
    factor, launches = (10.0, o.backward_launches) if phase == "backward" else (4.0, o.launches)
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
        swap_heads(ctx, rows, o, phase, *mine)
    if op.kernel in _QUANTISES:
        given = moved if phase == "backward" else moved + 2 * kv
        add_casts(rows, o.label, given / ctx.e, _QUANTISES[op.kernel], phase=phase)
    if ring:
        core = {"work": "attention", "shape": (sequences, heads, length, width), "dtype": ctx.dtype}
        ring_attention(ctx, rows, {**core, "phase": phase, "launches": launches}, o, op, max(1, mine[1] // ctx.inner))
        return
    row = rows.add(
        label=o.label,
        work="attention",
        shape=(sequences, heads, length, width),
        call=AttentionCall(op.kernel, mask, window, groups, keys),
        dtype=ctx.dtype,
        flops=flops,
        read=moved + 2 * kv if factor == 4.0 else 3 * moved + 2 * kv,
        written=moved if factor == 4.0 else moved + 2 * kv,
        phase=phase,
        launches=launches,
    )
    if o.peers > ctx.inner:
        size = 2.0 * own * op.keys * max(1, mine[1] // ctx.inner) * width * ctx.e
        _exchange(ctx, rows, o, phase, -1 if narrow else row, size)


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


def exchange_keys(ctx: LayerContext, rows: Rows, o: Operator, groups: int, width: int, phase: str, beside: int) -> None:
    """Keys and values of the other ranks' tokens, for attention that keeps its scores.

    Args:
        groups: key/value heads of a rank; `width`: of one.
        beside: the product that a ring hides them beside.
    """
    if o.peers > ctx.inner:
        _exchange(ctx, rows, o, phase, beside, 2.0 * ctx.tokens * o.peers * groups * width * ctx.e)


def _exchange(ctx: LayerContext, rows: Rows, o: Operator, phase: str, beside: int, size: float) -> None:
    """Gather keys and values; backward their gradients are added, too."""
    exchange = attention_exchange(QUERIES)
    for name in (exchange.keys, exchange.gradients) if phase == "backward" else (exchange.keys,):
        rows.sends(
            f"{o.label} keys and values",
            name,
            size,
            ctx.groups.ring or ctx.groups.context,
            ctx.dtype,
            phase,
            beside=beside if ctx.exchange in ("ring", "hybrid") else -1,
        )
