"""Attention as a mixer: to all (earlier) tokens, to the last `window` ones, or within blocks of `window` tokens."""

from __future__ import annotations

from simulator.workload.blocks.attention import ATTENTIONS
from simulator.workload.blocks.mixer.base import Mixer
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Keep, Tensor

__all__ = ["Chunk", "Full", "Window"]


class Full(Mixer):
    """Attention to all (earlier) tokens, and its output projection."""

    name = "full"
    source = "Vaswani et al. 2017, arXiv 1706.03762"

    def build(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `Mixer.build`."""
        out = ATTENTIONS.get(g.m.attention).build(g, x)
        projected = g.tensor("projection output", *g.tokens, g.hidden)
        kept = Keep(tensor=out, name="projection input", element=g.kept, cheap=False)
        return g.linear(
            "projection",
            out,
            (projected,),
            (g.heads, g.value_dim),
            keep=kept,
            bias=g.m.linear_bias,
            again=(projected.name,),
            role="projection",
            parts=("output",),
        )[0]


class Window(Full):
    """Attention to the last `window` tokens."""

    name = "window"
    source = "Beltagy et al. 2020, arXiv 2004.05150"


class Chunk(Full):
    """Attention within blocks of `window` tokens."""

    name = "chunk"
    source = "Llama 4 (Meta, 2025)"
