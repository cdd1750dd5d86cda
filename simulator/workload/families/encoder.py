"""Encoders: every token attends to every token, and the head predicts the tokens themselves (BERT).

    embedding (tokens, positions, types) - norm - layers - [linear - activation - norm] - output - cross entropy

Norms stand behind their residuals in the original; they cost the same in front.  All positions are predicted, as the libraries'
training code does, or as in the original the 15 % that were masked (`picks_masked`).  Source: Devlin et al., arXiv 1810.04805.
"""

from __future__ import annotations

import math

from simulator.workload.blocks.embedding import embedding
from simulator.workload.blocks.head import head
from simulator.workload.blocks.norm import norm
from simulator.workload.builder import LayerBuilder
from simulator.workload.families.transformer import Transformer
from simulator.workload.graph import Dim, Keep, Moves, Tensor

__all__ = ["Encoder"]

_MASKED = 0.15
"""Share of tokens that are masked: Devlin et al., section 3.1."""


class Encoder(Transformer):
    """Encoder-only transformer of tokens."""

    name = "encoder"
    source = "Devlin et al. 2018, arXiv 1810.04805"

    def embedding(self, g: LayerBuilder) -> Tensor:
        """See `Transformer.embedding`."""
        return norm(g, "embedding norm", embedding(g))

    def head(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `Transformer.head`."""
        stream, tokens = x, g.tokens
        if g.style.picks_masked:
            tokens = (g.batch, Dim("masked", math.ceil(_MASKED * g.sequence.size)))
            x = x.view(*tokens, g.hidden)
        if g.m.head_transform:
            made = g.tensor("head transform output", *tokens, Dim("transformed", g.m.hidden))
            kept = Keep(tensor=x, name="head transform input", element=g.kept)
            g.linear("head transform", x, (made,), (g.hidden,), keep=kept, bias=True)
            x = norm(g, "head norm", _activation(g, made))
        if g.m.pooler:
            self._pooler(g, stream)
        share = tokens[1].size / g.sequence.size
        return head(g, x.view(*tokens, g.hidden), bias=g.m.head_transform, share=share)

    def _pooler(self, g: LayerBuilder, x: Tensor) -> None:
        """A dense layer on the first token of each sequence; its bias costs nothing beside it."""
        pooled = g.tensor("pooled", g.batch, Dim("transformed", g.m.hidden))
        first = x.view(g.batch, g.hidden)
        g.linear("pooler", first, (pooled,), (g.hidden,), keep=None, bias=True, sums_bias=False)
        g.results.append(pooled)


def _activation(g: LayerBuilder, x: Tensor) -> Tensor:
    """The activation function between the head's linear layer and its norm."""
    e = g.e
    out = g.tensor("head activation output", *x.dims)
    return g.kernel(
        "head activation",
        (x,),
        (out,),
        Moves(dims=x.dims, read=e, written=e, backward_read=2 * e, backward_written=e),
        keeps=(Keep(tensor=x, name="head activation input"),),
    )
