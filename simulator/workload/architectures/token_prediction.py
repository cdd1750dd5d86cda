"""Multi-token prediction: a module behind the last layer that predicts one token further (DeepSeek-V3, arXiv 2412.19437, 2.2).

    hidden state - norm -+
                         +- join [2 h -> h] - transformer layer - norm - head (shared) - cross entropy
    next token - embedding (shared) - norm -+

The shared matrices are counted with the parts that own them (`lowering/parameters.py`); on a pipeline rank that holds no embedding
a copy of it stands, and its gradients are added (Megatron-LM's multi_token_prediction does the same).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.operator import Operator, Saved

__all__ = ["prediction_head", "prediction_layer"]


def prediction_layer(p: Pieces, layer: list[Operator]) -> list[Operator]:
    """Return the operators from the last hidden state to the module's own: norms, joining product, the layer.

    Args:
        layer: the operators of its transformer layer.
    """
    m = p.m
    table = replace(p.embedding()[0], label="next token embedding")
    joined = Saved(name="joined states", bytes=2.0 * p.t * m.hidden * p.kept, region="sequence", cheap=True)
    join = p.linear("join states", "column", m.hidden, 2 * m.hidden, joined, False)
    return [
        table,
        p.norm("next token norm"),
        p.norm("hidden state norm"),
        replace(join, gathers=True),
        *layer,
    ]


def prediction_head(p: Pieces) -> list[Operator]:
    """Return the module's norm, its product with the vocabulary and its loss."""
    return p.head()
