"""Encoder-decoders (T5): two stacks with a sequence length each; the decoder also attends to the encoder's output.

    encoder   embedding - layers - norm ------------------------+
    decoder   embedding - layers: self attention - attention to + - MLP - norm - output - cross entropy

For S tokens in the encoder and T in the decoder, cross attention projects queries from T and keys and values from S tokens.  A chunk
boundary inside the decoder carries both stacks' activations.  The encoder's output is kept once, with the decoder's embedding.
Source: Raffel et al., arXiv 1910.10683, section 2.1.
"""

from __future__ import annotations

from simulator.workload.blocks.attention.core import core
from simulator.workload.blocks.embedding import embedding
from simulator.workload.blocks.norm import norm
from simulator.workload.blocks.residual import residual
from simulator.workload.builder import LayerBuilder
from simulator.workload.families.transformer import Transformer
from simulator.workload.graph import Keep, LayerGraph, Tensor
from simulator.workload.layer_kind import DECODER_EMBEDDING

__all__ = ["EncoderDecoder"]


class EncoderDecoder(Transformer):
    """Encoder-decoder transformer."""

    name = "encoder_decoder"
    source = "Raffel et al. 2019, arXiv 1910.10683, section 2.1"

    def build(self, g: LayerBuilder, kind: str) -> Tensor:
        """See `ModelFamily.build`."""
        if kind != DECODER_EMBEDDING:
            return super().build(g, kind)
        stream = g.given("hidden states", g.batch, g.source, g.hidden, role="stream")
        output = norm(g, "encoder norm", stream)
        g.results.append(output)
        return embedding(g, kind, (Keep(tensor=output, name="encoder output"),))

    def input_bytes(self, graph: LayerGraph) -> float:
        """See `ModelFamily.input_bytes`; the decoder's embedding is taken to have an input as large as its output."""
        return graph.outputs[0].bytes if graph.kind == DECODER_EMBEDDING else super().input_bytes(graph)

    def boundary_bytes(self, graph: LayerGraph) -> float:
        """See `ModelFamily.boundary_bytes`."""
        ends = graph.kind in ("embedding", DECODER_EMBEDDING)
        return graph.outputs[0].bytes if ends else super().boundary_bytes(graph)

    def head(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `Transformer.head`."""
        g.passed_by(g.batch, g.source, g.hidden)
        return super().head(g, x)

    def between(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """In a decoder: norm, queries, keys and values of the encoder's tokens, core, projection and residual."""
        if g.kind.stack != "cross":
            return x
        m, bias = g.m, g.m.qkv_bias
        far = g.passed_by(g.batch, g.source, g.hidden)
        y = norm(g, "cross attention norm", x, cheap=False)
        q = g.tensor("cross q", *g.tokens, g.heads, g.head_dim)
        k = g.tensor("cross k", g.batch, g.source, g.kv_heads, g.head_dim)
        v = g.tensor("cross v", g.batch, g.source, g.kv_heads, g.value_dim)
        asked = Keep(tensor=y, name="cross query input", element=g.kept)
        g.linear("cross query", y, (q,), (g.hidden,), keep=asked, bias=bias, parts=("query",))
        g.linear("cross keys and values", far, (k, v), (g.hidden,), keep=None, bias=bias, parts=("key", "value"))
        out = core(g, q, k, v, keys=g.source.size * g.peers, label="cross ", causal=False)
        made = g.tensor("cross projection output", *g.tokens, g.hidden)
        given = Keep(tensor=out, name="cross projection input", element=g.kept, cheap=False)
        g.linear(
            "cross projection",
            out,
            (made,),
            (g.heads, g.value_dim),
            keep=given,
            bias=m.linear_bias,
            again=(made.name,),
            parts=("output",),
        )
        return residual(g, "cross attention residual", made, x)
