"""Encoder-decoders (T5): two stacks with a sequence length each; the decoder also attends to the encoder's output.

    encoder   embedding - layers - norm ------------------------+
    decoder   embedding - layers: self attention - attention to + - MLP - norm - output - cross entropy

For S tokens in the encoder and T in the decoder, cross attention projects queries from T and keys and values from S tokens.  A chunk
boundary inside the decoder carries both stacks' activations.  The encoder's output is kept once, with the decoder's embedding.
Source: Raffel et al., arXiv 1910.10683, section 2.1.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.architectures.attention import core
from simulator.workload.architectures.pieces import Pieces
from simulator.workload.architectures.transformer import Transformer, layer
from simulator.workload.layer_kind import DECODER_EMBEDDING
from simulator.workload.operator import Operator, Saved

__all__ = ["EncoderDecoder"]


class EncoderDecoder(Transformer):
    """Encoder-decoder transformer."""

    name = "encoder_decoder"
    source = "Raffel et al. 2019, arXiv 1910.10683, section 2.1"

    def operators(self, p: Pieces, kind: str) -> list[Operator]:
        """See `Transformer.operators`."""
        if kind in ("embedding", DECODER_EMBEDDING):
            table = replace(p.embedding()[0], label=kind)
            if kind == "embedding":
                return [table]
            return [_on_source(p).norm("encoder norm"), _with_output(p, table)]
        if not kind.startswith("cross "):
            return super().operators(p, kind)
        own = layer(p)
        end = next(i for i, o in enumerate(own) if o.label == "mlp norm")
        return [*own[:end], *_cross(p), *own[end:]]

    def boundary_bytes(self, p: Pieces, kind: str) -> float:
        """See `Transformer.boundary_bytes`."""
        both = kind == "head" or kind.startswith("cross ")
        return (p.t + (p.sequences * p.source if both else 0)) * p.m.hidden * p.e


def _on_source(p: Pieces) -> Pieces:
    """The same pieces on the encoder's tokens."""
    return Pieces(
        p.m,
        p.sequences,
        p.source,
        p.sequences * p.source,
        p.precision,
        p.style,
        p.vocabulary,
        0,
        p.peers,
        p.kind,
        p.source,
    )


def _with_output(p: Pieces, table: Operator) -> Operator:
    output = Saved(name="encoder output", bytes=p.sequences * p.source * p.m.hidden * p.e, region="sequence")
    return replace(table, saved=(*table.saved, output))


def _cross(p: Pieces) -> list[Operator]:
    """Norm, queries, keys and values of the encoder's tokens, core, projection and residual."""
    m, far = p.m, _on_source(p)
    query, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    none = Saved(name="", bytes=0.0, region="sequence")
    asked = Saved(name="cross query input", bytes=p.t * m.hidden * p.kept, region="sequence", cheap=True)
    given = Saved(name="cross projection input", bytes=p.t * query * p.kept, region="tensor")
    bias = m.qkv_bias
    return [
        p.norm("cross attention norm"),
        p.linear("cross query", "column", query, m.hidden, asked, bias),
        far.linear("cross keys and values", "column", 2 * kv, m.hidden, none, bias),
        *core(p, keys=far.keys, tokens=far.t, label="cross ", causal=False),
        p.linear("cross projection", "row", m.hidden, query, given, m.linear_bias, again=1.0),
        p.residual("cross attention residual"),
    ]
