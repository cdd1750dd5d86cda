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
    moved = p.t * (query + kv) * e
    return [product, _rotary(p, moved, moved)]


def _rotary(p: Pieces, read: float, written: float) -> Operator:
    """Rotation of queries and keys: one kernel that reads and writes them once, or plain tensor operations.

    Plain, in reads and writes of the rotated tensors (x cos + half-swapped x sin; half = one of the two halves):

        forward   x cos 1, 1; negated half 1/2, 1/2; join 1, 1; times sin 1, 1; sum 2, 1           = 5.5, 4.5
        backward  times sin 1, 1; negated half 1/2, 1/2; each half set into zeros 1, 3; their sum 2, 1;
                  times cos 1, 1; sum of both ways 2, 1                                            = 7.5, 7.5
    """
    fused = p.style.fused_rotary
    return Operator(
        label="rotary",
        work="memory_bound",
        split="tensor",
        read=read * (1.0 if fused else 5.5),
        written=written * (1.0 if fused else 4.5),
        backward_read=written * (1.0 if fused else 7.5),
        backward_written=read * (1.0 if fused else 7.5),
        again=1.0,
        launches=2 if fused else 10,
        backward_launches=2 if fused else 18,
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
    read = p.t * p.e * (wide + m.heads * m.qk_nope_head_dim + m.qk_rope_head_dim)
    return [
        *queries,
        p.linear("key value down", "replicated", m.kv_lora_rank + m.qk_rope_head_dim, m.hidden, saved("", 0), False),
        p.norm("key value latent norm", m.kv_lora_rank),
        p.linear("key value up", "column", up, m.kv_lora_rank, latent, False),
        _rotary(p, read, 2.0 * p.t * p.e * wide),
    ]


def _core(p: Pieces) -> list[Operator]:
    """The core between qkv and projection; unfused keeps the scores in memory, flash kernels do not."""
    m, e = p.m, p.e
    operands = (
        Saved(name="queries", bytes=p.t * m.heads * m.head_dim * e, region="tensor"),
        Saved(name="keys", bytes=p.t * m.kv_heads * m.head_dim * e, region="tensor", cheap=True),
        Saved(name="values", bytes=p.t * m.kv_heads * m.value_head_dim * e, region="tensor"),
    )
    if p.style.attention != "unfused":
        kept = [Saved(name="softmax statistics", bytes=4.0 * p.t * m.heads, region="tensor", droppable=True)]
        if p.style.copies_attention_output and p.style.attention in ("flash1", "flash2"):
            out = p.t * m.heads * m.value_head_dim * e
            kept.append(Saved(name="attention output", bytes=out, region="tensor", droppable=True))
        return [
            Operator(
                label="attention",
                work="attention",
                split="heads",
                shape=(p.sequences, m.heads, p.length, (m.head_dim + m.value_head_dim) // 2),
                kv_heads=m.kv_heads,
                keys=p.keys,
                peers=p.peers,
                saved=(*operands, *kept),
                kernel=p.style.attention,
                causal=True,
                selective=True,
                backward_launches=3,
            )
        ]
    return _unfused(p, operands)


def _unfused(p: Pieces, operands: tuple[Saved, ...]) -> list[Operator]:
    """Scores, softmax, dropout and context as separate kernels.

    A softmax that is not fused works in fp32; bytes per score, e = bytes of an element, 1 for the mask:

        forward   cast e, 4; masked fill 4 + 1, 4; softmax 4, 4; cast 4, e       reads e + 13    writes 12 + e
        backward  cast e, 4; softmax 8, 4; masked fill 4 + 1, 4; cast 4, e       reads e + 17    writes 12 + e
    """
    m, e, s, keys = p.m, p.e, p.length, p.keys
    maps = p.sequences * m.heads
    scores = float(maps) * s * keys
    drop = p.style.dropout
    fused = p.style.fused_softmax
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
            read=scores * (e if fused else e + 13),
            written=scores * (e if fused else e + 12),
            backward_read=scores * (2 * e if fused else e + 17),
            backward_written=scores * (e if fused else e + 12),
            saved=tuple(saved),
            launches=1 if fused else 4,
            backward_launches=1 if fused else 4,
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
