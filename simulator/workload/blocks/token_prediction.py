"""Multi-token prediction: a module behind the last layer that predicts one token further (DeepSeek-V3, arXiv 2412.19437, 2.2).

    hidden state - norm -+
                         +- join [2 h -> h] - transformer layer - norm - head (shared) - cross entropy
    next token - embedding (shared) - norm -+

The shared matrices are counted with the parts that own them (`lowering/steps/parameters.py`); on a pipeline rank that holds no embedding
a copy of it stands, and its gradients are added (Megatron-LM's multi_token_prediction does the same).
"""

from __future__ import annotations

from simulator.workload.blocks.embedding import embedding
from simulator.workload.blocks.norm import norm
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Tensor

__all__ = ["join_next_token"]


def join_next_token(g: LayerBuilder, x: Tensor) -> Tensor:
    """Add what stands in front of the module's transformer layer; return the layer's input.

    Args:
        x: the last hidden state.
    """
    table = norm(g, "next token norm", embedding(g, "next token embedding"))
    normed = norm(g, "hidden state norm", x)
    both = Dim("hidden_and_next", 2 * g.hidden.size)
    joined = g.tensor("joined states output", *g.tokens, Dim("projected", g.hidden.size))
    pair = normed.view(*g.tokens, both)
    kept = Keep(tensor=pair, name="joined states", element=g.kept)
    g.linear("join states", pair, (joined,), (both,), keep=kept, bias=False, gathers=True, beside=(table,))
    return joined.view(*g.tokens, g.hidden)
