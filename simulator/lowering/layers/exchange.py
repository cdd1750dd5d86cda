"""Rows of what goes between the ranks that share experts: tokens, the router's weights, and how many rows each expert has."""

from __future__ import annotations

from simulator.lowering.layers.division import tensor_collective
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.writer import Writer
from simulator.partition.layout import PARTIAL, REPLICATE
from simulator.partition.redistribute import redistribute
from simulator.partition.strategies.base import TENSOR
from simulator.partition.strategies.experts import EXPERT, EXPERT_TENSOR
from simulator.program.calls import AWAITED, Call, NodeExchange
from simulator.workload.graph import Dim, Exchange, HostWait

__all__ = ["swap_rows", "wait_for"]

_WEIGHT = 4.0
"""Bytes of a router's weight, fp32."""
_COUNT = 8.0
"""Bytes of a number of rows, int64."""
_DEEPEP = 20
"""Multiprocessors that DeepEP's kernels get (Megatron-LM, transformer_config.py: moe_deepep_num_sms)."""
_HYBRIDEP = 32
"""Those that HybridEP's get (NVIDIA-NeMo/Megatron-Bridge, scripts/performance: moe_hybridep_num_sms, in every release with HybridEP)."""


def swap_rows(w: Writer, op: Exchange) -> None:
    """Rows of tokens to the ranks of their experts (outward), or their gradients, or back; their weights too, where experts apply these.

    Between expert-parallel ranks an all_to_all; where tensor parallelism splits experts, all of its ranks need all rows:
    gathered outward, partial results summed back.  Without an all_to_all tokens go before they are copied.
    """
    ctx, o, outward = w.ctx, w.o, op.outward != w.backward
    copies = (op.inputs if op.outward else op.outputs)[0].dims
    if ctx.layout.ranks(EXPERT) == 1:
        _between_splits(w, copies, outward, ctx.stream_bytes)
        return
    if not outward:
        _between_splits(w, copies, outward, o.read * ctx.experts.imbalance)
    call = _once_per_node(ctx, op, outward) if ctx.experts.kind == "once_per_node" else None
    _all_to_all(w, o.label, o.read, copies, call)
    if op.outward and ctx.experts.kind == "all_to_all" and ctx.style.weights_in_experts:
        _all_to_all(w, f"{o.label} weights", _WEIGHT * ctx.tokens * op.copies, copies)
    if outward:
        _between_splits(w, copies, outward, o.read * ctx.experts.imbalance)


def _once_per_node(ctx: LayerContext, op: Exchange, outward: bool) -> NodeExchange:
    """An exchange by DeepEP, which copies rows, or by HybridEP, which sends or fetches them and sorts them."""
    hybrid, row = ctx.style.exchange_sorts, int(ctx.hidden * ctx.e)
    return NodeExchange(
        op.copies,
        op.reach,
        row=row,
        multiprocessors=_HYBRIDEP if hybrid else _DEEPEP,
        moved="copied" if not hybrid else "sent" if outward else "fetched",
        experts=ctx.experts.count // ctx.layout.ranks(EXPERT) if hybrid and ctx.experts.sorts else 0,
    )


def _all_to_all(w: Writer, label: str, size: float, copies: tuple[Dim, ...], call: Call = None) -> None:
    ctx = w.ctx
    w.sends(label, "all_to_all", size / ctx.ways(copies) * ctx.experts.imbalance, ctx.groups.expert, call=call)


def _between_splits(w: Writer, copies: tuple[Dim, ...], outward: bool, message: float) -> None:
    """The collective between ranks that split experts; nothing where experts are whole.

    Outward every one of them needs all rows; on the way back each has a term of every row's sum.
    """
    if w.ctx.layout.ranks(EXPERT_TENSOR) > 1:
        lie = w.ctx.layout.placement(copies)[TENSOR]
        held, wanted = (lie, REPLICATE) if outward else (PARTIAL, lie)
        w.collective(w.o.label, tensor_collective(redistribute({TENSOR: held}, {TENSOR: wanted})), message)


def wait_for(w: Writer, op: HostWait) -> None:
    """What the host waits for; of rows per expert it is first told to all ranks that share experts."""
    ctx, o = w.ctx, w.o
    ranks = ctx.layout.ranks(EXPERT)
    if ranks > 1 and op.counts:
        w.sends(o.label, "all_gather", _COUNT * ranks * ctx.experts.count, ctx.groups.expert)
    w.moves(
        o.label,
        o.read / ctx.ways(op.dims),
        0.0,
        call=AWAITED,
        launches=o.launches * (ctx.experts.count // ranks if op.looped else 1),
    )
