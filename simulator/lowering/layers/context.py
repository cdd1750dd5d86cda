"""Attention of sequences whose tokens are shared out over ranks (context parallelism): a ring, or heads swapped for tokens.

In a ring ranks pass keys and values round.  A rank holds two pieces of each sequence, one from its front and one from its end,
so that causal attention is equal work on all (Megatron-LM, torch.distributed context parallelism).  Of the p blocks of keys its
own comes first, under the mask; each of the other p - 1 counts half: all queries against half of its keys, or half of the
queries against all.  Every block gives partial results, which are joined: per block of L tokens and q (keys and values: g)
values a token, bytes per value

    fused, 16 bits   forward  joined into an fp32 output          10 q,  and once more  6 q
                     backward gradients added                      6 q +  6 g
    plain, fp32      forward  cast, subtract, scale, subtract     38 q,  and once more  6 q
                     backward added, cut into halves and put back 26 q + 26 g, keys' and values' gradients travel in fp32
    traced, fp32     as plain, in one kernel of a compiled graph  10 q,  and once more  6 q + 4 g (keys and values put together)
                     backward                                     10 q + 10 g,  and once more 4 g

of which three quarters run, since half of the blocks touch half of the queries or keys only.  fp32 gradients of keys and values
go all the way round, home included; the others stop one step short.
A compiled graph waits for each exchange where it starts, so none hides beside attention.
Source: NVIDIA TransformerEngine, context_parallel.py (fused); torch.distributed.tensor.experimental._attention (plain);
torch.distributed._functional_collectives waits at once when traced, torch._inductor.config.reorder_for_compute_comm_overlap is
off by default (traced).
"""

from __future__ import annotations

from typing import Any

from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.rows import Rows
from simulator.partition.strategies.context import HEADS, QUERIES, attention_exchange
from simulator.program.calls import AttentionCall
from simulator.program.program import COLLECTIVE
from simulator.workload.graph import Attention, HeadSwap
from simulator.workload.operator import Operator

__all__ = ["exchange_heads", "ring_attention", "swap_heads"]

_TOUCHED = 0.75
"""Share of the queries, or of the keys, that a block of another rank touches on average."""
_JOIN = {"fused": (10.0, 6.0, 6.0), "plain": (38.0, 26.0, 26.0), "traced": (10.0, 10.0, 10.0)}
"""Bytes per value of a block: forward, gradients of queries, of keys and values; by how the runtime joins."""
_LAST = 6.0
_PUT_TOGETHER = 4.0
_LAUNCHES = {"fused": (4, 6), "plain": (8, 16), "traced": (2, 3)}


def ring_attention(
    ctx: LayerContext, rows: Rows, core: dict[str, Any], o: Operator, op: Attention, groups: int
) -> None:
    """Write the attention of one rank, its exchanges and the joining of partial results.

    Args:
        core: what all rows of the attention kernel share; `shape` is (sequences, heads, tokens of this rank, width).
        groups: key/value heads of a rank.
    """
    sequences, heads, length, width = core["shape"]
    phase, wide, traced = core["phase"], ctx.style.ring_in_fp32, ctx.style.ring_traced
    how = ("traced" if traced else "plain") if wide else "fused"
    backward = phase == "backward"
    passes = 2.5 if backward else 1.0
    work = 4.0 * passes * sequences * heads * float(length) * width
    peers = o.peers // ctx.inner
    blocks = peers - 1
    own = rows.add(
        **core, label=o.label, call=AttentionCall(op.kernel, "causal", 0, groups, length), flops=work * length
    )
    others = {**core, "shape": (sequences * blocks, heads, length, width), "launches": core["launches"] * blocks}
    rest = rows.add(
        **others,
        label=f"{o.label} to other ranks' keys",
        call=AttentionCall(op.kernel, "full", 0, groups, length // 2),
        flops=work * length * blocks,
    )
    queries, keys = float(sequences * length * heads * width), 2.0 * sequences * length * groups * width
    out, grad_q, grad_kv = _JOIN[how]
    moved = _TOUCHED * blocks * (grad_q * queries + grad_kv * keys if backward else out * queries)
    moved += 0.0 if backward else _LAST * queries
    moved += _PUT_TOGETHER * keys if how == "traced" else 0.0
    rows.add(
        label=f"{o.label} joining of partial results",
        work="memory_bound",
        dtype=core["dtype"],
        read=moved / 2,
        written=moved / 2,
        phase=phase,
        launches=_LAUNCHES[how][backward] * blocks,
        part="input" if backward else "",
    )
    shared = keys * peers * ctx.e
    # gathered at once, keys hide beside the rank's own block only; passed on block by block, beside the blocks of others
    exchange = attention_exchange(QUERIES)
    wanted = [(exchange.keys, shared, own if wide or blocks == 1 else rest)]
    if backward:
        home = peers / blocks * 4.0 / ctx.e if wide else 1.0
        wanted.append((exchange.gradients, shared * home, rest))
    for name, message, beside in wanted:
        rows.add(
            label=f"{o.label} keys and values {name}",
            kind=COLLECTIVE,
            work=name,
            message=message,
            group=ctx.groups.ring or ctx.groups.context,
            dtype=core["dtype"],
            phase=phase,
            beside=-1 if traced else beside,
        )


def swap_heads(ctx: LayerContext, rows: Rows, o: Operator, phase: str, heads: int, groups: int) -> None:
    """Ulysses: tokens of all heads against all tokens of some heads, and back (DeepSpeed-Ulysses, arXiv 2309.14509).

    Args:
        heads, groups: heads of queries and of keys and values that the tensor-parallel rank has.
    """
    query = ctx.tokens * heads * o.shape[3] * ctx.e
    kv = 2 * ctx.tokens * max(1, groups) * o.shape[3] * ctx.e
    exchange = attention_exchange(HEADS)
    for name, what, message in (
        (exchange.queries, "queries, keys and values", query + kv),
        (exchange.output, "output", query),
    ):
        rows.add(
            label=f"{o.label} {what} {name}",
            kind=COLLECTIVE,
            work=name,
            message=message,
            group=ctx.groups.context,
            dtype=ctx.dtype,
            phase=phase,
        )


def exchange_heads(ctx: LayerContext, rows: Rows, o: Operator, op: HeadSwap, phase: str) -> None:
    """The exchanges of heads for tokens around what is carried along whole sequences."""
    given = op.inputs[0]
    for part in op.parts:
        rows.add(
            label=f"{o.label} all_to_all",
            kind=COLLECTIVE,
            work=attention_exchange(HEADS).queries,
            message=given.bytes * part / ctx.ways(given.dims),
            group=(*ctx.groups.context, *ctx.groups.ring),
            dtype=ctx.dtype,
            phase=phase,
            part="input" if phase == "backward" else "",
        )
