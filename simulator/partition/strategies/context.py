"""Context parallelism: ranks have parts of the tokens everywhere, and attention, which needs all keys, divides its work in one of two ways.

    along the queries    keys and values are gathered, or passed round a ring meanwhile; their gradients are scattered and added
    along the heads      tokens of all heads are exchanged for all tokens of some heads, and back (Ulysses)

Where scores are kept (ring self-attention), the two products of attention each gather their keys, or values, and codes add the
gradients of these whole on every rank, which then keeps its part.

Which collectives these are follows, as around any product.  In two levels the inner ranks divide heads and the outer ones queries.
Source: Li et al., arXiv 2105.13120; Liu et al., Ring Attention, arXiv 2310.01889; Jacobs et al., DeepSpeed-Ulysses,
arXiv 2309.14509; Fang and Zhao, arXiv 2405.07719.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from simulator.partition.layout import Layout, rule
from simulator.partition.propagate import einsum_steps, wanted
from simulator.partition.redistribute import Move, redistribute
from simulator.workload.graph import Dim, Tensor

__all__ = ["HEADS", "QUERIES", "RING_SELF_ATTENTION", "AttentionExchange", "attention_exchange"]

QUERIES, HEADS = "sequence", "heads"
"""Dimensions along which the ranks of a sequence divide its attention."""

RING_SELF_ATTENTION = "ring_self_attention"
"""The kind of context parallelism that keeps scores (`Plan.context_parallel_kind`)."""

_TOKENS, _KEYS = Dim("sequence", 4), Dim("keys", 4)
_WIDTH, _HEADS = Dim("head_dim", 1), Dim("heads", 4)
_SHARED = Dim("kv_heads", 4, serves="heads")


@dataclass(frozen=True, slots=True)
class AttentionExchange:
    """Names of the collectives around attention, "" for none.

    Args:
        queries, keys: before it, of queries and of keys and values.
        output: behind it.
        gradients: behind its backward, of the gradients of keys and values.
    """

    queries: str
    keys: str
    output: str
    gradients: str


@functools.cache
def attention_exchange(along: str, whole_gradients: bool = False) -> AttentionExchange:
    """Return what ranks exchange that divide attention along `QUERIES` or `HEADS`, where each has a part of all tokens.

    Args:
        whole_gradients: whether every rank wants the gradients of all keys and values, of which it cuts its part out.

    >>> attention_exchange(QUERIES)
    AttentionExchange(queries='', keys='all_gather', output='', gradients='reduce_scatter')
    >>> attention_exchange(QUERIES, whole_gradients=True).gradients
    'all_reduce'
    >>> attention_exchange(HEADS).queries
    'all_to_all'
    """
    layout = Layout("context", (("context", 4),), (rule("context", "sequence", "keys"),))
    q, k = Tensor("q", (_TOKENS, _HEADS, _WIDTH), 2.0), Tensor("k", (_KEYS, _SHARED, _WIDTH), 2.0)
    out = Tensor("attention output", (_TOKENS, _HEADS, _WIDTH), 2.0)
    divided = {"context": next(d for d in (_TOKENS, _HEADS) if d.name == along)}
    forward, backward = einsum_steps(layout, divided, q, k, out), einsum_steps(layout, divided, q, out, k)
    gradients = redistribute(wanted(divided, k, True), {}) if whole_gradients else backward.result
    return AttentionExchange(*(_name(m) for m in (forward.first, forward.second, forward.result, gradients)))


def _name(moves: tuple[Move, ...]) -> str:
    return moves[0].collective if moves else ""
