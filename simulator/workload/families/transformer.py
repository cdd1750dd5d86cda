"""Transformers: attention (multi-head, grouped-query, multi-query or latent) and a plain or gated MLP, or a mixture of them.

One layer, for T = sequences x sequence_length tokens, hidden h, kv width g = kv_heads x head_dim, query width q, ffn f:

    norm - qkv [h -> q+2g] - rotary - attention - projection [q -> h] - residual - norm - up [h -> f or 2f] - activation
         - down [f -> h] - residual

In a "moe layer" the MLP gives way to experts (blocks/experts.py); kinds of attention are in blocks/attention, what else mixes tokens in
blocks/mixer.
Bytes kept for backward follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
arXiv 2205.05198, section 4: sbh(34 + 5as/h) for a plain MLP with dropout and unfused attention in 16 bits.
"""

from __future__ import annotations

from simulator.workload.blocks.embedding import embedding
from simulator.workload.blocks.experts import experts
from simulator.workload.blocks.head import head
from simulator.workload.blocks.mixer import MIXERS
from simulator.workload.blocks.mlp import mlp
from simulator.workload.blocks.norm import norm
from simulator.workload.blocks.residual import block_end
from simulator.workload.blocks.token_prediction import join_next_token
from simulator.workload.builder import LayerBuilder
from simulator.workload.families.base import ModelFamily
from simulator.workload.graph import Tensor
from simulator.workload.layer_kind import MTP_HEAD, MTP_LAYER

__all__ = ["Transformer"]


class Transformer(ModelFamily):
    """Decoder-only transformer, dense or with experts."""

    name = "transformer"
    source = "Vaswani et al. 2017; Korthikanti et al. 2022, arXiv 2205.05198, section 4"

    def build(self, g: LayerBuilder, kind: str) -> Tensor:
        """See `ModelFamily.build`."""
        if kind == "embedding":
            return self.embedding(g)
        x = g.given("hidden states", *g.tokens, g.hidden, role="stream")
        if kind in ("head", MTP_HEAD):
            return self.head(g, x)
        if kind == MTP_LAYER:
            x = join_next_token(g, x)
        return self.layer(g, x)

    def embedding(self, g: LayerBuilder) -> Tensor:
        """Add the embedding; return the activations."""
        return embedding(g)

    def head(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """Add the final norm, the output and the loss; return the loss."""
        return head(g, norm(g, "final norm", x))

    def layer(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """Add a layer of the builder's kind; return the new residual stream."""
        kind = g.kind
        if kind.mixer != "none":
            with g.captured("attn"):
                with g.module("layernorm"):
                    y = norm(g, "attention norm", x, readers=3 if g.qkv_apart else 1)
                x = block_end(g, "attention", MIXERS.get(kind.mixer).build(g, y), x)
                x = self.between(g, x)
        if kind.mlp == "only":
            return x
        sparse = kind.mlp == "moe"
        with g.captured("moe" if sparse else "mlp"):
            with g.module("layernorm"), g.captured("moe_router" if sparse else "mlp"):
                gate_apart = not sparse and g.m.gated_mlp and not g.style.joined_gate
                y = norm(g, "mlp norm", x, cheap=True, readers=2 if gate_apart else 1)
            if sparse:
                y = experts(g, y)
            else:
                with g.module("mlp"):
                    y = mlp(g, "mlp", y, g.ffn)
            return block_end(g, "mlp", y, x)

    def between(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """Add what stands between a layer's attention and its MLP; return the residual stream."""
        return x
