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

from typing import NamedTuple

from simulator.lowering.layers.writer import Writer
from simulator.partition.strategies.context import HEADS, QUERIES, attention_exchange
from simulator.program.calls import AttentionCall
from simulator.workload.graph import Attention, HeadSwap

__all__ = ["exchange_heads", "ring_attention", "swap_heads"]


class _Joining(NamedTuple):
    """What joins partial results: bytes per value of queries, and of keys and values, of each block of another rank; the same once
    more; and kernels of a block, and once more."""

    block: tuple[float, float]
    once: tuple[float, float]
    launches: tuple[int, int]


_JOINING = {
    "fused": (_Joining((7.5, 0.0), (6.0, 0.0), (4, 0)), _Joining((4.5, 4.5), (0.0, 0.0), (6, 0))),
    "plain": (_Joining((32.5, 4.0), (12.0, 0.0), (11, 2)), _Joining((11.5, 23.5), (20.0, 28.0), (7, 9))),
    "traced": (_Joining((7.5, 0.0), (6.0, 4.0), (2, 0)), _Joining((7.5, 7.5), (0.0, 4.0), (3, 0))),
}
"""Forward and backward, by how the runtime joins."""


def ring_attention(w: Writer, op: Attention, shape: tuple[int, int, int, int], groups: int, launches: int) -> None:
    """Write the attention of one rank, its exchanges and the joining of partial results.

    Args:
        shape: (sequences, heads, tokens of this rank, width).
        groups: key/value heads of a rank.
        launches: of the attention kernel.
    """
    ctx, o = w.ctx, w.o
    sequences, heads, length, width = shape
    wide, traced = ctx.style.ring_in_fp32, ctx.style.ring_traced
    how = ("traced" if traced else "plain") if wide else "fused"
    passes = 2.5 if w.backward else 1.0
    work = 4.0 * passes * sequences * heads * float(length) * width
    peers = o.peers // ctx.inner
    blocks = peers - 1
    call = AttentionCall(op.kernel, "causal", 0, groups, length)
    own = w.attends(o.label, shape, call, work * length, launches)
    rest = w.attends(
        f"{o.label} to other ranks' keys",
        (sequences * blocks, heads, length, width),
        AttentionCall(op.kernel, "full", 0, groups, length // 2),
        work * length * blocks,
        launches * blocks,
    )
    queries, keys = float(sequences * length * heads * width), 2.0 * sequences * length * groups * width
    joining = _JOINING[how][w.backward]
    each, once = ((per_query * queries + per_key * keys) for per_query, per_key in (joining.block, joining.once))
    moved = blocks * each + once
    joins = blocks * joining.launches[0] + joining.launches[1]
    w.moves(f"{o.label} joining of partial results", moved / 2, moved / 2, joins)
    shared = keys * peers * ctx.e
    # gathered at once, keys hide beside the rank's own block only; passed on block by block, beside the blocks of others
    exchange = attention_exchange(QUERIES)
    wanted = [(exchange.keys, shared, own if wide or blocks == 1 else rest)]
    if w.backward:
        home = peers / blocks * 4.0 / ctx.e if wide else 1.0
        wanted.append((exchange.gradients, shared * home, rest))
    for name, message, beside in wanted:
        group = ctx.groups.ring or ctx.groups.context
        w.sends(f"{o.label} keys and values", name, message, group, beside=-1 if traced else beside)


def swap_heads(w: Writer, heads: int, groups: int) -> None:
    """Ulysses: tokens of all heads against all tokens of some heads, and back (DeepSpeed-Ulysses, arXiv 2309.14509).

    Args:
        heads, groups: heads of queries and of keys and values that the tensor-parallel rank has.
    """
    ctx, o = w.ctx, w.o
    query = ctx.tokens * heads * o.shape[3] * ctx.e
    kv = 2 * ctx.tokens * max(1, groups) * o.shape[3] * ctx.e
    exchange = attention_exchange(HEADS)
    for name, what, message in (
        (exchange.queries, "queries, keys and values", query + kv),
        (exchange.output, "output", query),
    ):
        w.sends(f"{o.label} {what}", name, message, ctx.groups.context)


def exchange_heads(w: Writer, op: HeadSwap) -> None:
    """The exchanges of heads for tokens around what is carried along whole sequences."""
    given, groups, name = op.inputs[0], w.ctx.groups, attention_exchange(HEADS).queries
    for part in op.parts:
        size = given.bytes * part / w.ctx.ways(given.dims)
        w.sends(w.o.label, name, size, (*groups.context, *groups.ring), part=w.part)
