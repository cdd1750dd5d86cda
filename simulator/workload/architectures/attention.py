"""Attention of a transformer's layer: query, key and value projections, rotary embedding and the core, as operators.

    standard   qkv [h -> q + 2 g] - rotary - core
    latent     query down [h -> r_q] - norm - query up [r_q -> heads (nope + rope)]
               key value down [h -> r_kv + rope] - norm - key value up [r_kv -> heads (nope + v)] - rotary, joining - core

The down projections of latent attention are held whole by every tensor-parallel rank and run on its share of the tokens
(DeepSeek-V2, arXiv 2405.04434; Megatron-LM's multi-latent attention divides the up projections by columns).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.architectures.relative import relative_bias, transformer_xl
from simulator.workload.architectures.unfused_attention import unfused
from simulator.workload.operator import Operator, Saved

__all__ = ["attention", "core"]

WITHOUT_WINDOWS = ("flash1",)
"""Kernels that know no sliding window and compute all scores (FlashAttention has windows since version 2.3); so does attention
that keeps its scores in memory, where a window is only a mask."""


def attention(p: Pieces) -> list[Operator]:
    """Return the operators from a layer's normed input to the attention's output, before the output projection."""
    gate = [_output_gate(p)] if p.m.attention_gate else []
    return [*(_latent(p) if p.m.attention == "latent" else _standard(p)), *core(p), *gate]


def _output_gate(p: Pieces) -> Operator:
    """The sigmoid of the projected gate times the attention's output."""
    x = p.t * p.m.heads * p.m.value_head_dim * p.e
    gate = Saved(name="attention gate", bytes=x, region="tensor")
    return Operator(
        label="attention gate",
        work="memory_bound",
        split="tensor",
        read=2 * x,
        written=x,
        backward_read=3 * x,
        backward_written=2 * x,
        saved=(gate, Saved(name="attention output", bytes=x, region="tensor", droppable=True)),
        again=1.0,
    )


def _standard(p: Pieces) -> list[Operator]:
    """One product for queries, keys and values, and the rotary embedding."""
    m, e = p.m, p.e
    query, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    qkv_in = Saved(name="qkv input", bytes=p.t * m.hidden * p.kept, region=p.gathered, cheap=True)
    gate = query if m.attention_gate else 0
    product = p.linear("qkv", "column", query + gate + 2 * kv, m.hidden, qkv_in, m.qkv_bias)
    if not p.style.joined_qkv and m.positions != "learned":
        product = replace(product, products=3, columns=(query + gate, kv, kv))
    out = [product]
    if m.qk_norm:
        out.append(_head_norm(p, query + kv))
    if m.positions == "rotary":
        moved = p.t * (query + kv) * e
        out.append(_rotary(p, moved, moved))
    return out


def _head_norm(p: Pieces, width: int) -> Operator:
    """Norms of every head's queries and keys, one kernel each; weights of a head's width, the same for all heads."""
    whole = p.norm("query and key norm", width)
    weights = 2 * p.m.head_dim * (2 if p.m.norm == "layer_norm" else 1)
    return replace(
        whole,
        split="tensor",
        parameters=weights,
        small_parameters=weights,
        saved=tuple(replace(s, region="tensor") for s in whole.saved),
        launches=2 * whole.launches,
        backward_launches=2 * whole.backward_launches,
    )


def _rotary(p: Pieces, read: float, written: float) -> Operator:
    """Rotation of queries and keys: one kernel that reads and writes them once, or plain tensor operations.

    Plain, in reads and writes of the rotated tensors (x cos + half-swapped x sin; half = one of the two halves):

        forward   x cos 1, 1; negated half 1/2, 1/2; join 1, 1; times sin 1, 1; sum 2, 1           = 5.5, 4.5
        backward  times sin 1, 1; negated half 1/2, 1/2; each half set into zeros 1, 3; their sum 2, 1;
                  times cos 1, 1; sum of both ways 2, 1                                            = 7.5, 7.5

    Of a part of each head alone that share of them; then it is joined with the rest (1, 1), and backward both parts are set into
    zeros and summed (3, 4).
    """
    fused, share = p.style.fused_rotary, p.m.rotary_share
    part = share < 1.0
    forward = (1.0, 1.0) if fused else (5.5 * share + part, 4.5 * share + part)
    backward = (1.0, 1.0) if fused else (7.5 * share + 3 * part, 7.5 * share + 4 * part)
    kept = Saved(name="cosines and sines", bytes=4.0 * p.t * p.m.head_dim * p.e, region="whole", cheap=True)
    return Operator(
        saved=(kept,) if p.style.gathers_rotary else (),
        label="rotary",
        work="memory_bound",
        split="tensor",
        read=read * forward[0],
        written=written * forward[1],
        backward_read=written * backward[0],
        backward_written=read * backward[1],
        access="" if fused else "stream",
        again=1.0,
        launches=2 if fused else 10 + 2 * part,
        backward_launches=2 if fused else 18 + 10 * part,
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


def core(p: Pieces, keys: int = 0, tokens: int = 0, label: str = "", causal: bool | None = None) -> list[Operator]:
    """Return the core between queries, keys and values; unfused keeps the scores in memory, flash kernels do not.

    Args:
        keys: that each sequence of queries meets; 0 = those of its own sequence.
        tokens: that keys and values are made of here; 0 = the same as the queries.
        label: what its operators' names begin with.
        causal: whether later keys are masked; None = as the kind of layer has it.
    """
    m, e = p.m, p.e
    keys, tokens = keys or p.keys, tokens or p.t
    repeats = p.style.repeats_keys and m.kv_heads < m.heads
    groups = m.heads if repeats else m.kv_heads
    operands = (
        Saved(name=f"{label}queries", bytes=p.t * m.heads * m.head_dim * e, region="tensor"),
        Saved(name=f"{label}keys", bytes=tokens * groups * m.head_dim * e, region="tensor", cheap=True),
        Saved(name=f"{label}values", bytes=tokens * groups * m.value_head_dim * e, region="tensor", cheap=repeats),
    )
    bias = relative_bias(p, keys) if m.positions == "relative_bias" and not label else []
    if p.style.attention != "unfused" and m.positions != "transformer_xl":
        narrow = p.kind.mixer in ("window", "chunk") and p.style.attention not in WITHOUT_WINDOWS
        statistics = 4.0 * p.t * m.heads
        kept = [Saved(name=f"{label}softmax statistics", bytes=statistics, region="tensor", droppable=True)]
        if p.style.copies_attention_output and p.style.attention in ("flash1", "flash2", "te", "te_2024"):
            out = p.t * m.heads * m.value_head_dim * e
            kept.append(Saved(name=f"{label}attention output", bytes=out, region="tensor", droppable=True))
        copies = _copies(p, tokens, groups, label)
        return [
            *bias,
            *([_repeated(p, tokens)] if repeats else []),
            *_flash_copies(p, tokens, groups, label),
            Operator(
                label=f"{label}attention",
                work="attention",
                split="heads",
                shape=(p.sequences, m.heads, p.length, (m.head_dim + m.value_head_dim) // 2),
                kv_heads=groups,
                keys=keys,
                peers=p.peers,
                saved=(*operands, *kept),
                kernel=p.style.attention,
                causal=p.kind.stack != "encoder" if causal is None else causal,
                window=m.window if narrow else 0,
                chunked=p.kind.mixer == "chunk",
                selective=True,
                backward_launches=3,
            ),
            *([copies] if copies else []),
        ]
    if m.positions == "transformer_xl":
        bias = transformer_xl(p, keys)
    return unfused(p, operands, keys, bias, label)


def _operand_bytes(p: Pieces, tokens: int, groups: int) -> float:
    """Bytes of queries, and of keys and values of `tokens` tokens in `groups` heads."""
    m = p.m
    return (p.t * m.heads * m.head_dim + tokens * groups * (m.head_dim + m.value_head_dim)) * p.e


def _copies(p: Pieces, tokens: int, groups: int, label: str) -> Operator | None:
    """Copies around a fused kernel: its output into the layer's order of several sequences, and the gradients of queries, keys
    and values into the one tensor that they were split off from; before it, both into batch-first order and into one tensor."""
    m, style = p.m, p.style
    moves = style.copies_attention_output and style.attention in ("flash1", "flash2") and p.sequences > 1
    out = p.t * m.heads * m.value_head_dim * p.e if moves else 0.0
    split = style.splits_qkv and m.attention != "latent" and not label
    whole = _operand_bytes(p, tokens, groups)
    parts, packed = whole if split else 0.0, 2 * whole if style.packs_qkv and not label else 0.0
    if not out and not parts and not packed:
        return None
    return Operator(
        label=f"{label}attention copies",
        work="memory_bound",
        split="tensor",
        read=out + packed,
        written=out + packed,
        backward_read=out + parts,
        backward_written=out + parts,
        launches=(1 if out else 0) + (4 if packed else 0),
        backward_launches=(1 if out else 0) + (3 if parts else 0),
        selective=True,
    )


def _flash_copies(p: Pieces, tokens: int, groups: int, label: str) -> list[Operator]:
    """Copies of Transformer Engine around FlashAttention, which it takes where cuDNN's kernel is not to be had (before Hopper).

    Sequence-first queries, keys and values that are parts of one tensor are put in the kernel's order; so are their gradients,
    and these are joined again.  A trace of Megatron-Core 0.20 on A100 (johnny19436/dp-tp-pp-lab, profiles/nsys_dp2_stats.txt) shows
    each once per layer and microbatch: prepare_kernel_fwd, prepare_kernel_bwd, CatArrayBatchedCopy.
    """
    if not p.style.copies_attention_output or p.style.attention not in ("te", "te_2024") or p.m.attention == "latent":
        return []
    moved = _operand_bytes(p, tokens, groups)
    return [
        Operator(
            label=f"{label}attention operands copied",
            work="memory_bound",
            access="flash layout",
            split="tensor",
            read=moved,
            written=moved,
            backward_read=2 * moved,
            backward_written=2 * moved,
            launches=0,
            backward_launches=0,
            selective=True,
        )
    ]


def _repeated(p: Pieces, tokens: int) -> Operator:
    """Keys and values written once for every query head; backward sums them again."""
    m = p.m
    few, many = (tokens * p.e * heads * (m.head_dim + m.value_head_dim) for heads in (m.kv_heads, m.heads))
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
