"""Vision transformers: an encoder of image patches with a class token, and a head on that token alone (ViT).

    patches [n -> h] - positions - layers - norm - [h -> classes] of the first token - cross entropy

`sequence_length` counts the patches and the class token.  Source: Dosovitskiy et al., arXiv 2010.11929, section 3.1.
"""

from __future__ import annotations

from simulator.workload.blocks.head import head
from simulator.workload.blocks.norm import norm
from simulator.workload.builder import LayerBuilder
from simulator.workload.families.transformer import Transformer
from simulator.workload.graph import Dim, Keep, Moves, Tensor

__all__ = ["Vision"]


class Vision(Transformer):
    """Encoder of image patches."""

    name = "vision"
    source = "Dosovitskiy et al. 2020, arXiv 2010.11929, section 3.1"

    def embedding(self, g: LayerBuilder) -> Tensor:
        """See `Transformer.embedding`."""
        m, e = g.m, g.e
        numbers = Dim("patch", m.patch_inputs)
        patches = g.given("patches", *g.tokens, numbers)
        x = g.tensor("patch embedding output", *g.tokens, g.hidden)
        g.linear("patch embedding", patches, (x,), (numbers,), keep=Keep(tensor=patches), bias=True)
        out = g.tensor("embedding output", *x.dims)
        rows = (m.sequence_length if m.positions == "learned" else 0) + 1
        return g.kernel(
            "class token and positions",
            (x,),
            (out,),
            Moves(dims=x.dims, read=e, written=e, backward_read=e),
            weights=(g.weight("class token and positions", Dim("positions", rows), g.hidden, role="vector"),),
            launches=2,
            backward_launches=2,
        )

    def head(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `Transformer.head`."""
        return head(g, norm(g, "final norm", x).view(g.batch, g.hidden), bias=True, share=g.batch.size / g.t)
