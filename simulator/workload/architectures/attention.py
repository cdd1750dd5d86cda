"""Attention of a transformer's layer: query, key and value projections, rotary embedding and the core, as operators.

    standard   qkv [h -> q + 2 g] - rotary - core
    latent     query down [h -> r_q] - norm - query up [r_q -> heads (nope + rope)]
               key value down [h -> r_kv + rope] - norm - key value up [r_kv -> heads (nope + v)] - rotary, joining - core

The down projections of latent attention are held whole by every tensor-parallel rank and run on its share of the tokens
(DeepSeek-V2, arXiv 2405.04434; Megatron-LM's multi-latent attention divides the up projections by columns).
"""

from __future__ import annotations

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.operator import Operator, Saved

__all__ = ["attention"]


def attention(p: Pieces) -> list[Operator]:
    """Return the operators from a layer's normed input to the attention's output, before the output projection."""
    return [*(_latent(p) if p.m.attention == "latent" else _standard(p)), *_core(p)]


def _standard(p: Pieces) -> list[Operator]:
    """One product for queries, keys and values, and the rotary embedding."""
    m, e = p.m, p.e
    query, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    qkv_in = Saved(name="qkv input", bytes=p.t * m.hidden * p.kept, region=p.gathered, cheap=True)
    product = p.linear("qkv", "column", query + 2 * kv, m.hidden, qkv_in, m.linear_bias or m.qkv_bias)
    if m.positions != "rotary":
        return [product]
    moved = p.t * (query + kv) * e * (1 if p.style.fused_rotary else 3)
    return [product, _rotary(p, moved, moved)]


def _rotary(p: Pieces, read: float, written: float) -> Operator:
    launches = 2 if p.style.fused_rotary else 10
    return Operator(
        label="rotary",
        work="memory_bound",
        split="tensor",
        read=read,
        written=written,
        backward_read=written,
        backward_written=read,
        again=1.0,
        launches=launches,
        backward_launches=launches,
    )


def _latent(p: Pieces) -> list[Operator]:
    """Queries, keys and values from latents; keys are joined from the latent's part and the shared rotary part."""
    m, kept = p.m, p.kept
    wide = m.heads * m.head_dim

    def saved(name: str, width: int) -> Saved:
        return Saved(name=name, bytes=p.t * width * kept, region="sequence", cheap=True)

    first = saved("attention input", m.hidden)
    if m.q_lora_rank:
        queries = [
            p.linear("query down", "replicated", m.q_lora_rank, m.hidden, first, False),
            p.norm("query latent norm", m.q_lora_rank),
            p.linear("query up", "column", wide, m.q_lora_rank, saved("query latent", m.q_lora_rank), False),
        ]
    else:
        queries = [p.linear("query", "column", wide, m.hidden, first, False)]
    up = m.heads * (m.qk_nope_head_dim + m.v_head_dim)
    latent = saved("key value latent", m.kv_lora_rank)
    passes = 1 if p.style.fused_rotary else 3
    read = p.t * p.e * (wide + m.heads * m.qk_nope_head_dim + m.qk_rope_head_dim) * passes
    return [
        *queries,
        p.linear("key value down", "replicated", m.kv_lora_rank + m.qk_rope_head_dim, m.hidden, saved("", 0), False),
        p.norm("key value latent norm", m.kv_lora_rank),
        p.linear("key value up", "column", up, m.kv_lora_rank, latent, False),
        _rotary(p, read, 2.0 * p.t * p.e * wide * passes),
    ]


def _core(p: Pieces) -> list[Operator]:
    """The core between qkv and projection; unfused keeps the scores in memory, flash kernels do not."""
    m, e = p.m, p.e
    repeats = p.style.repeats_keys and m.kv_heads < m.heads
    groups = m.heads if repeats else m.kv_heads
    operands = (
        Saved(name="queries", bytes=p.t * m.heads * m.head_dim * e, region="tensor"),
        Saved(name="keys", bytes=p.t * groups * m.head_dim * e, region="tensor", cheap=True),
        Saved(name="values", bytes=p.t * groups * m.value_head_dim * e, region="tensor", cheap=repeats),
    )
    if p.style.attention != "unfused":
        kept = [Saved(name="softmax statistics", bytes=4.0 * p.t * m.heads, region="tensor", droppable=True)]
        if p.style.copies_attention_output and p.style.attention in ("flash1", "flash2", "te"):
            out = p.t * m.heads * m.value_head_dim * e
            kept.append(Saved(name="attention output", bytes=out, region="tensor", droppable=True))
        return [
            *([_repeated(p)] if repeats else []),
            Operator(
                label="attention",
                work="attention",
                split="heads",
                shape=(p.sequences, m.heads, p.length, (m.head_dim + m.value_head_dim) // 2),
                kv_heads=groups,
                keys=p.keys,
                peers=p.peers,
                saved=(*operands, *kept),
                kernel=p.style.attention,
                causal=True,
                selective=True,
                backward_launches=3,
            ),
        ]
    return _unfused(p, operands)


def _repeated(p: Pieces) -> Operator:
    """Keys and values written once for every query head; backward sums them again."""
    m = p.m
    few, many = (p.t * p.e * heads * (m.head_dim + m.value_head_dim) for heads in (m.kv_heads, m.heads))
    return Operator(
        label="repeated keys and values",
        work="memory_bound",
        split="tensor",
        read=few,
        written=many,
        backward_read=many,
        backward_written=few,
        again=1.0,
        launches=2,
        backward_launches=2,
    )


def _unfused(p: Pieces, operands: tuple[Saved, ...]) -> list[Operator]:
    """Scores, softmax, dropout and context as separate kernels."""
    m, e, s, keys = p.m, p.e, p.length, p.keys
    maps = p.sequences * m.heads
    scores = float(maps) * s * keys
    drop = p.style.dropout
    passes = 1 if p.style.fused_softmax else 3
    saved = [Saved(name="softmax output", bytes=scores * e, region="tensor", droppable=True)]
    operators = [
        Operator(
            label="attention scores",
            work="gemm",
            split="heads",
            shape=(maps, s, keys, m.head_dim),
            has_weight=False,
            kv_heads=m.kv_heads,
            peers=p.peers,
            saved=operands[:2],
            selective=True,
            backward_launches=2,
        ),
        Operator(
            label="softmax",
            work="memory_bound",
            split="tensor",
            read=scores * e * passes,
            written=scores * e * passes,
            backward_read=2 * scores * e * passes,
            backward_written=scores * e * passes,
            saved=tuple(saved),
            launches=1 if p.style.fused_softmax else 4,
            backward_launches=1 if p.style.fused_softmax else 4,
            selective=True,
        ),
    ]
    if drop:
        operators.append(
            Operator(
                label="attention dropout",
                work="memory_bound",
                split="tensor",
                read=scores * e,
                written=scores * (e + 1),
                backward_read=scores * (e + 1),
                backward_written=scores * e,
                saved=(
                    Saved(name="attention dropout mask", bytes=scores, region="tensor", droppable=True),
                    Saved(name="attention dropout output", bytes=scores * e, region="tensor", droppable=True),
                ),
                selective=True,
            )
        )
    x = p.t * m.heads * m.value_head_dim * e
    operators.append(
        Operator(
            label="attention context",
            work="gemm",
            split="heads",
            shape=(maps, s, m.value_head_dim, keys),
            has_weight=False,
            saved=operands[2:],
            selective=True,
            backward_launches=2,
        )
    )
    operators.append(
        Operator(
            label="attention transpose",
            work="memory_bound",
            split="tensor",
            read=x,
            written=x,
            backward_read=4 * x,
            backward_written=4 * x,
            backward_launches=4,
            selective=True,
        )
    )
    return operators
