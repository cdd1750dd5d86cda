"""Multi-head latent attention: queries, keys and values from latents.

    query down [h -> r_q] - norm - query up [r_q -> heads (nope + rope)]
    key value down [h -> r_kv + rope] - norm - key value up [r_kv -> heads (nope + v)] - rotary, joining - core

The down projections are held whole by every tensor-parallel rank and run on its share of the tokens (DeepSeek-V2, arXiv 2405.04434;
Megatron-LM's multi-latent attention divides the up projections by columns).
"""

from __future__ import annotations

from simulator.workload.blocks.attention.base import Attention
from simulator.workload.blocks.attention.core import core
from simulator.workload.blocks.attention.rotary import rotary
from simulator.workload.blocks.norm import norm
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Tensor
from simulator.workload.model_fields import LATENT_FIELDS, STANDARD_FIELDS, ModelFields

__all__ = ["Latent"]


class Latent(Attention):
    """Multi-head latent attention."""

    name = "latent"
    source = "DeepSeek-V2, arXiv 2405.04434, section 2.1"

    def check(self, model: ModelFields) -> None:
        """See `Attention.check`."""
        missing = [name for name in LATENT_FIELDS[1:] if not getattr(model, name)]
        if missing:
            raise ValueError(f"latent attention needs {', '.join(missing)}")
        plain = [name for name in STANDARD_FIELDS if getattr(model, name)]
        if plain:
            raise ValueError(
                f'{plain[0]} is modelled with attention = "standard" only, not with "latent"; leave it out'
            )
        if model.head_dim != model.qk_nope_head_dim + model.qk_rope_head_dim or model.kv_heads != model.heads:
            raise ValueError(
                "latent attention has head_dim = qk_nope_head_dim + qk_rope_head_dim and kv_heads = heads, but head_dim = "
                f"{model.head_dim}, kv_heads = {model.kv_heads}; leave both out"
            )

    def build(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `Attention.build`."""
        m, tokens = g.m, g.tokens
        latent, query_latent = Dim("kv_latent", m.kv_lora_rank), Dim("query_latent", m.q_lora_rank)
        nope, rope = Dim("nope_dim", m.qk_nope_head_dim), Dim("rope_dim", m.qk_rope_head_dim)
        q = g.tensor("q", *tokens, g.heads, g.head_dim)
        gathered = g.style.keeps_gathered_inputs
        first = Keep(tensor=x, name="attention input", element=g.kept, whole=gathered)
        with g.module("mla_up_proj"):
            if m.q_lora_rank:
                down = g.tensor("query latent", *tokens, query_latent)
                with g.outside("mla_up_proj"):
                    g.linear("query down", x, (down,), (g.hidden,), keep=first, bias=False, parts=("query",))
                down = norm(g, "query latent norm", down, whole=gathered)
                kept = Keep(tensor=down, name="query latent", element=g.kept, whole=gathered)
                g.linear("query up", down, (q,), (query_latent,), keep=kept, bias=False, parts=("query",))
            else:
                with g.outside("mla_up_proj"):
                    g.linear("query", x, (q,), (g.hidden,), keep=first, bias=False, parts=("query",))
            kv, shared = g.tensor("key value latent", *tokens, latent), g.tensor("rotary key", *tokens, rope)
            with g.outside("mla_up_proj"):
                g.linear("key value down", x, (kv, shared), (g.hidden,), keep=None, bias=False, parts=("key", "key"))
            kv = norm(g, "key value latent norm", kv, whole=gathered)
            k, v = g.tensor("k", *tokens, g.kv_heads, nope), g.tensor("v", *tokens, g.kv_heads, g.value_dim)
            kept = Keep(tensor=kv, name="key value latent", element=g.kept, whole=gathered)
            whole = (Keep(tensor=k, name="keys beside values"),) if g.style.keeps_values_in_place else ()
            g.linear(
                "key value up", kv, (k, v), (latent,), keep=kept, more_keeps=whole, bias=False, parts=("key", "value")
            )
            read = (*tokens, Dim("projected", m.heads * (m.head_dim + nope.size) + rope.size))
            written = (*tokens, g.heads, Dim("queries_and_keys", 2 * m.head_dim))
            turned = (*tokens, Dim("projected", (m.heads + 1) * rope.size))
            q, k = rotary(g, (q, k, shared), read, written, turned)
        return core(g, q, k.view(*tokens, g.kv_heads, g.head_dim), v)
