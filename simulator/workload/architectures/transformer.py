"""Transformers: attention (multi-head, grouped-query, multi-query or latent) and a plain or gated MLP, or a mixture of them.

One layer, for T = sequences x sequence_length tokens, hidden h, kv width g = kv_heads x head_dim, query width q, ffn f:

    norm - qkv [h -> q+2g] - rotary - attention - projection [q -> h] - residual - norm - up [h -> f or 2f] - activation
         - down [f -> h] - residual

In a "moe layer" the MLP gives way to experts (experts.py); latent attention is in attention.py.
Bytes kept for backward follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
arXiv 2205.05198, section 4: sbh(34 + 5as/h) for a plain MLP with dropout and unfused attention in 16 bits.
"""

from __future__ import annotations

from simulator.workload.architectures.attention import attention
from simulator.workload.architectures.base import Architecture
from simulator.workload.architectures.experts import experts
from simulator.workload.architectures.pieces import Pieces
from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle, LayerPart, Operator, Saved
from simulator.workload.precision import Precision

__all__ = ["Transformer"]


class Transformer(Architecture):
    """Decoder-only (or encoder-only) transformer, dense or with experts."""

    name = "transformer"
    source = "Vaswani et al. 2017; Korthikanti et al. 2022, arXiv 2205.05198, section 4"

    def part(
        self,
        model: Model,
        kind: str,
        sequences: int,
        sequence_length: int,
        precision: Precision,
        style: KernelStyle,
        vocabulary: int,
        context: int = 0,
        peers: int = 1,
    ) -> LayerPart:
        """See `Architecture.part`."""
        tokens = sequences * sequence_length
        p = Pieces(model, sequences, sequence_length, tokens, precision, style, vocabulary, context, peers)
        if kind == "layer":
            operators = _layer(p, p.mlp("mlp", model.ffn, "tensor"))
        elif kind == "moe layer":
            operators = _layer(p, experts(p))
        else:
            operators = p.embedding() if kind == "embedding" else p.head()
        width = 8.0 if kind == "embedding" else model.hidden * p.e
        return LayerPart(kind=kind, operators=tuple(operators), input_bytes=tokens * width)


def _layer(p: Pieces, mlp: list[Operator]) -> list[Operator]:
    """One transformer layer around its MLP, forward order."""
    m = p.m
    values = m.heads * m.value_head_dim
    proj_in = Saved(name="projection input", bytes=p.t * values * p.kept, region="tensor")
    return [
        p.norm("attention norm"),
        *attention(p),
        p.linear("projection", "row", m.hidden, values, proj_in, m.linear_bias, again=1.0),
        p.residual("attention residual"),
        p.norm("mlp norm"),
        *mlp,
        p.residual("mlp residual"),
    ]
