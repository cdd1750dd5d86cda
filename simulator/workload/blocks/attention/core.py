"""The core of attention, between queries, keys and values: a fused kernel with the copies around it, or scores in memory or in chunks."""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.blocks.attention.chunked import chunked
from simulator.workload.blocks.attention.relative import relative_bias, transformer_xl
from simulator.workload.blocks.attention.unfused import unfused
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Attention, Keep, Moves, Tensor

__all__ = ["core"]

WITHOUT_WINDOWS = ("flash1",)
"""Kernels that know no sliding window and compute all scores (FlashAttention has windows since version 2.3); so does attention
that keeps its scores in memory, where a window is only a mask."""
_FLASH = ("flash1", "flash2")
_TE = ("te", "te_2024", "te_mxfp8")
_OF_GROUPS = ("flash2", *_TE, "sdpa")
"""Kernels that codes call with a key for each group of queries, whatever they do before others (Dao-AILab/flash-attention README,
flash_attn_func of release 2; huggingface/transformers modeling_flash_attention_utils.py, and integrations/sdpa_attention.py since July
2025: enable_gqa; pytorch/torchtitan 0.3.0, models/common/attention.py, too)."""


def core(
    g: LayerBuilder, q: Tensor, k: Tensor, v: Tensor, keys: int = 0, label: str = "", causal: bool | None = None
) -> Tensor:
    """Add the core; return its output (batch, sequence, heads, value_dim).

    Args:
        keys: that each sequence of queries meets; 0 = those of its own sequence.
        label: what its operations' names begin with, where a layer has a second one.
        causal: whether later keys are masked; None = as the kind of layer has it.
    """
    m, style = g.m, g.style
    own = not label
    keys = keys or g.keys
    repeats = style.repeats_keys and style.attention not in _OF_GROUPS and m.kv_heads < m.heads
    tokens = k.dims[:2]
    shared = g.heads if repeats else k.dims[2]
    many = [t.view(*tokens, shared, t.dims[-1]) for t in (k, v)]
    chunks = style.attention == "chunked" and m.positions not in ("relative_bias", "transformer_xl")
    fused = style.attention not in ("unfused", "chunked") and m.positions != "transformer_xl"
    if repeats:
        k, v = many = _repeated(g, k, v, label)
    role = "operand" if own else ""
    operands = (
        Keep(tensor=q, name=f"{label}queries", cheap=False, role=role),
        Keep(tensor=many[0], name=f"{label}keys", cheap=True, role=role),
        Keep(tensor=many[1], name=f"{label}values", cheap=repeats, role=role),
    )
    with g.module("core_attn"):
        if chunks:
            return chunked(g, (q, k, v), operands, keys, label)
        if not fused:
            with_bias = transformer_xl if m.positions == "transformer_xl" else None
            if m.positions == "relative_bias" and own:
                with_bias = relative_bias
            return unfused(g, (q, k, v), operands, keys, with_bias, label)
        bias = relative_bias(g, q, None, keys) if m.positions == "relative_bias" and own else None
        q, k, v = _flash_copies(g, (q, k, v), label)
        out = _fused(g, (q, k, v, *((bias,) if bias else ())), operands, keys, label, causal)
        return _copies(g, out, (q, k, v), label)


def _fused(
    g: LayerBuilder, given: tuple[Tensor, ...], operands: tuple[Keep, ...], keys: int, label: str, causal: bool | None
) -> Tensor:
    style, kind = g.style, g.kind
    out = g.tensor(f"{label}attention output", *g.tokens, g.heads, g.value_dim)
    statistics = g.tensor(f"{label}softmax statistics", *g.tokens, g.heads, element=4.0, role="statistics")
    kept = [Keep(tensor=statistics, role="statistics")]
    if style.copies_attention_output and style.attention in (*_FLASH, *_TE):
        kept.append(Keep(tensor=out))
    narrow = kind.mixer in ("window", "chunk") and style.attention not in WITHOUT_WINDOWS
    g.add(
        Attention(
            label=f"{label}attention",
            inputs=given,
            outputs=(out, statistics),
            keeps=(*operands, *kept),
            keys=keys,
            kernel=style.attention,
            causal=kind.stack != "encoder" if causal is None else causal,
            window=g.m.window if narrow else 0,
            chunked=kind.mixer == "chunk",
            backward_launches=3,
        )
    )
    return out


def _copies(g: LayerBuilder, out: Tensor, operands: tuple[Tensor, ...], label: str) -> Tensor:
    """Copies around a fused kernel: its output into the layer's order of several sequences, and the gradients of queries, keys
    and values into the one tensor that they were split off from; before it, out of that tensor, or both into batch-first order and into
    one tensor."""
    style, e = g.style, g.e
    moves = style.copies_attention_output and style.attention in _FLASH and g.batch.size > 1
    joined = g.m.attention != "latent" and not label and not g.qkv_apart
    parts, copies = style.splits_qkv and joined, style.copies_qkv and joined
    packs = style.packs_qkv and not label
    packed = 2.0 * packs + copies
    if not moves and not parts and not packed:
        return out
    copied = replace(out, name=f"{out.name}, copied")
    return g.kernel(
        f"{label}attention copies",
        (out,),
        (copied,),
        Moves.copies(out.dims, e * moves, e * moves),
        *(Moves.copies(t.dims, e * packed, e * parts) for t in operands),
        launches=moves + 4 * packs + 3 * copies,
        backward_launches=moves + parts,
    )


def _flash_copies(g: LayerBuilder, operands: tuple[Tensor, ...], label: str) -> tuple[Tensor, ...]:
    """Copies of Transformer Engine around FlashAttention, which it takes where cuDNN's kernel is not to be had (before Hopper).

    Sequence-first queries, keys and values that are parts of one tensor are put in the kernel's order; so are their gradients,
    and these are joined again.  A trace of Megatron-Core 0.20 on A100 (johnny19436/dp-tp-pp-lab, profiles/nsys_dp2_stats.txt) shows
    each once per layer and microbatch: prepare_kernel_fwd, prepare_kernel_bwd, CatArrayBatchedCopy.
    """
    if not g.style.copies_attention_output or g.style.attention not in _TE or g.m.attention == "latent":
        return operands
    e = g.e
    names = ("queries", "keys", "values")
    copied = tuple(replace(t, name=f"{label}{name}, copied") for t, name in zip(operands, names, strict=True))
    g.kernel(
        f"{label}attention operands copied",
        operands,
        copied,
        *tuple(Moves.copies(t.dims, e, 2 * e) for t in operands),
        access="flash layout",
        launches=0,
        backward_launches=0,
    )
    return copied


def _repeated(g: LayerBuilder, k: Tensor, v: Tensor, label: str) -> list[Tensor]:
    """Keys and values written once for every query head; backward sums them again."""
    e = g.e
    few = (k, v)
    names = (f"{label}keys of every head", f"{label}values of every head")
    many = [g.tensor(name, *t.dims[:2], g.heads, t.dims[-1]) for name, t in zip(names, few, strict=True)]
    g.kernel(
        "repeated keys and values",
        few,
        tuple(many),
        *(Moves(dims=t.dims, read=e, backward_written=e) for t in few),
        *(Moves(dims=t.dims, written=e, backward_read=e) for t in many),
        keeps=(Keep(tensor=v, name=f"{label}values, not repeated", cheap=False, idle=True),),
        again=tuple(t.name for t in many),
        launches=2,
        backward_launches=2,
    )
    return many
