"""Ring self-attention: keys go round the ranks of a sequence until the scores of a rank's own queries are whole, then values do.

Of p ranks each has s/p tokens of every sequence.  Its queries stay.  With h values a token, b sequences, elements sent by a rank:

    forward   keys round, p - 1 turns, b (s/p) h each; a block of scores per turn, put in its place
              softmax over whole rows, which are kept for backward
              values round; a product per turn, added up                                    2 (p - 1) b (s/p) h
    backward  of each product: the gradient of what went round, for all tokens, added over the ranks whole
              (an all_reduce), of which a rank keeps its part; keys, then values, go round
              again for the gradient of the other operand                                   6 (p - 1) b (s/p) h

Every turn is waited for, so none hides beside a product.
Source: Li et al., arXiv 2105.13120, sections 3.1 and 3.2.2; Colossal-AI, parallel_sequence/_operation.py (RingQK, RingAV) and
communication/ring.py (batch_isend_irecv, then a synchronisation).
"""

from __future__ import annotations

from simulator.lowering.layers.attention import heads_held
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.writer import Writer
from simulator.partition.strategies.context import QUERIES, RING_SELF_ATTENTION, attention_exchange
from simulator.workload.graph import Product
from simulator.workload.operator import Operator

__all__ = ["goes_round", "round_backward", "round_forward"]

_COLUMNS, _DEPTH = 2, 3
"""Places of the keys in a product's (batch, m, n, k): of scores, and of what is summed over keys."""


def goes_round(ctx: LayerContext, o: Operator, op: Product) -> bool:
    """Whether the right operand of a product goes round, block by block."""
    return op.reads_keys and o.peers > 1 and ctx.exchange == RING_SELF_ATTENTION


def round_forward(w: Writer, op: Product, shape: tuple[int, int, int, int]) -> None:
    """Write a product of which the ranks have parts of the right operand; `shape`: of all blocks together."""
    _collective(w, op, attention_exchange(QUERIES).keys)
    place = _COLUMNS if op.makes_scores else _DEPTH
    _blocks(w, w.o.label, shape, place, "TN" if op.makes_scores else "NN", fresh=op.makes_scores)


def round_backward(w: Writer, op: Product, shape: tuple[int, int, int, int]) -> None:
    """Write both gradients of such a product."""
    b, m, n, k = shape
    label = f"{w.o.label} gradient"
    w.product(label, (b, k, n, m), "NT")
    exchange = attention_exchange(QUERIES, whole_gradients=True)
    _collective(w, op, exchange.gradients)
    _collective(w, op, exchange.keys)
    place, order = (_DEPTH, "NN") if op.makes_scores else (_COLUMNS, "TN")
    _blocks(w, label, (b, m, k, n), place, order)


def _collective(w: Writer, op: Product, name: str) -> None:
    """One among the ranks of a sequence, of the right operand or its gradient."""
    ctx = w.ctx
    batch, keys, _, width = op.inputs[1].dims
    groups = heads_held(ctx, w.o, op.inputs[1].dims)
    w.sends(
        f"{w.o.label} {'keys' if op.makes_scores else 'values'}",
        name,
        float(batch.size * keys.size * groups * width.size) * ctx.e,
        ctx.groups.context,
    )


def _blocks(
    w: Writer, label: str, shape: tuple[int, int, int, int], place: int, order: str, fresh: bool = False
) -> None:
    """Write one product per block of keys, and what puts their results together.

    Args:
        place: of the keys among (batch, m, n, k).
        fresh: whether a block's result is copied to a place of its own; else added to what began as zeros.
    """
    o = w.o
    sizes = list(shape)
    sizes[place] //= o.peers
    sizes[0] *= o.peers
    b, m, n, k = sizes
    w.product(label, (b, m, n, k), order, launches=o.peers)
    made = float(b * m * n) * w.ctx.e
    zeros = 0.0 if fresh else float(shape[0] * shape[1] * shape[2]) * w.ctx.e
    read = made if fresh else 2 * made
    w.moves(f"{label} blocks put together", read, made + zeros, launches=o.peers + (not fresh))
