"""Multi-head, grouped-query and multi-query attention: qkv [h -> q + 2 g] - norms of heads - rotary - core - gate."""

from __future__ import annotations

from simulator.workload.blocks.attention.base import Attention
from simulator.workload.blocks.attention.core import core
from simulator.workload.blocks.attention.rotary import rotary
from simulator.workload.blocks.norm import norms
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Moves, Tensor
from simulator.workload.model_fields import LATENT_FIELDS, ModelFields

__all__ = ["Standard"]


class Standard(Attention):
    """One product, or three, for queries, keys and values."""

    name = "standard"
    source = "Vaswani et al. 2017, arXiv 1706.03762; Ainslie et al. 2023, arXiv 2305.13245"

    def check(self, model: ModelFields) -> None:
        """See `Attention.check`."""
        given = [name for name in LATENT_FIELDS if getattr(model, name)]
        if given:
            raise ValueError(f'{given[0]} belongs to latent attention; give attention = "latent" or leave it out')

    def build(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `Attention.build`."""
        m = g.m
        q = g.tensor("q", *g.tokens, g.heads, g.head_dim)
        gate = g.tensor("gate of attention", *g.tokens, g.heads, g.head_dim)
        k = g.tensor("k", *g.tokens, g.kv_heads, g.head_dim)
        v = g.tensor("v", *g.tokens, g.kv_heads, g.value_dim)
        made = (q, *((gate,) if m.attention_gate else ()), k, v)
        kept = Keep(tensor=x, name="qkv input", element=g.kept, whole=g.style.keeps_gathered_inputs)
        g.linear(
            "qkv",
            x,
            made,
            (g.hidden,),
            keep=kept,
            bias=m.qkv_bias,
            kernels=(len(made) - 2, 1, 1) if g.qkv_apart else (),
            parts=(*("query",) * (len(made) - 2), "key", "value"),
        )
        both = (*g.tokens, Dim("heads", m.heads + m.kv_heads, joins=(g.heads, g.kv_heads)), g.head_dim)
        if m.qk_norm:
            scale = (Dim("queries_and_keys", 2), g.head_dim)
            q, k = norms(g, "query and key norm", (q, k), both, scale)
        if m.positions == "rotary":
            q, k = rotary(g, (q, k), both, both)
        out = core(g, q, k, v)
        return _gated(g, out, gate) if m.attention_gate else out


def _gated(g: LayerBuilder, x: Tensor, gate: Tensor) -> Tensor:
    """The sigmoid of the projected gate times the attention's output."""
    e = g.e
    out = g.tensor("gated attention output", *x.dims)
    return g.kernel(
        "attention gate",
        (x, gate),
        (out,),
        Moves(dims=x.dims, read=2 * e, written=e, backward_read=3 * e, backward_written=2 * e),
        keeps=(
            Keep(tensor=gate, name="attention gate"),
            Keep(tensor=x, name="attention output", droppable=True),
        ),
        again=(out.name,),
    )
