"""Transformers: attention (multi-head, grouped-query, multi-query or latent) and a plain or gated MLP, or a mixture of them.

One layer, for T = sequences x sequence_length tokens, hidden h, kv width g = kv_heads x head_dim, query width q, ffn f:

    norm - qkv [h -> q+2g] - rotary - attention - projection [q -> h] - residual - norm - up [h -> f or 2f] - activation
         - down [f -> h] - residual

In a "moe layer" the MLP gives way to experts (experts.py); latent attention is in attention.py, multi-token prediction in
token_prediction.py.
Bytes kept for backward follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
arXiv 2205.05198, section 4: sbh(34 + 5as/h) for a plain MLP with dropout and unfused attention in 16 bits.
"""

from __future__ import annotations

from simulator.workload.architectures.attention import attention
from simulator.workload.architectures.base import Architecture
from simulator.workload.architectures.experts import experts
from simulator.workload.architectures.pieces import Pieces
from simulator.workload.architectures.state_space import state_space
from simulator.workload.architectures.token_prediction import prediction_head, prediction_layer
from simulator.workload.layer_kind import MTP_HEAD, MTP_LAYER, LayerKind, is_layer, layer_kind
from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle, LayerPart, Operator, Saved
from simulator.workload.precision import Precision

__all__ = ["Transformer", "layer"]


class Transformer(Architecture):
    """Decoder-only transformer, dense or with experts."""

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
        source: int = 0,
    ) -> LayerPart:
        """See `Architecture.part`."""
        tokens = sequences * sequence_length
        own = layer_kind(model.layer_kinds[-1] if kind == MTP_LAYER else kind)
        p = Pieces(model, sequences, sequence_length, tokens, precision, style, vocabulary, context, peers, own, source)
        return LayerPart(
            kind=kind,
            operators=tuple(self.operators(p, kind)),
            input_bytes=self.input_bytes(p, kind),
            boundary_bytes=self.boundary_bytes(p, kind),
        )

    def operators(self, p: Pieces, kind: str) -> list[Operator]:
        """Return the operators of one kind of layer, in forward order."""
        if kind == MTP_LAYER:
            return prediction_layer(p, layer(p))
        if kind == MTP_HEAD:
            return prediction_head(p)
        if is_layer(kind):
            return layer(p)
        return p.embedding() if kind == "embedding" else p.head()

    def input_bytes(self, p: Pieces, kind: str) -> float:
        """Return the bytes of a layer's input: of the embedding, the token numbers."""
        width = 8.0 if kind == "embedding" else p.m.hidden * p.e
        return p.t * width

    def boundary_bytes(self, p: Pieces, kind: str) -> float:
        """Return the bytes that cross a pipeline boundary in front of a layer."""
        return self.input_bytes(p, kind)


def layer(p: Pieces) -> list[Operator]:
    """Return one transformer layer of the kind that `p` has, forward order."""
    m, kind = p.m, p.kind
    out: list[Operator] = []
    if kind.mixer != "none":
        out += [p.norm("attention norm"), *_mixer(p, kind), *_end(p, "attention")]
    if kind.mlp != "only":
        mlp = experts(p) if kind.mlp == "moe" else p.mlp("mlp", m.ffn, "tensor")
        out += [p.norm("mlp norm"), *mlp, *_end(p, "mlp")]
    return out


def _mixer(p: Pieces, kind: LayerKind) -> list[Operator]:
    m = p.m
    if kind.mixer in ("mamba2", "delta"):
        return state_space(p)
    values = m.heads * m.value_head_dim
    proj_in = Saved(name="projection input", bytes=p.t * values * p.kept, region="tensor")
    return [*attention(p), p.linear("projection", "row", m.hidden, values, proj_in, m.linear_bias, again=1.0)]


def _end(p: Pieces, what: str) -> list[Operator]:
    """The residual after attention or MLP, behind a norm where the model has one there."""
    return [*([p.norm(f"post {what} norm")] if p.m.post_norms else []), p.residual(f"{what} residual")]
