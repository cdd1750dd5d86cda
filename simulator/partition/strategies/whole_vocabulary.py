"""Tensor parallelism of layers alone: every rank has the whole embedding and the whole output matrix.

Nothing is exchanged around the embedding, the head and the loss; without sequence parallelism every rank does all of their work, with it
each does that of its tokens, and the gradients of both matrices are added up once a step.
"""

from __future__ import annotations

from simulator.partition.strategies.base import Strategy
from simulator.partition.strategies.megatron import Megatron

__all__ = ["WholeVocabulary"]


class WholeVocabulary(Strategy):
    """Heads and inner widths, but not the vocabulary."""

    name = "whole_vocabulary"
    source = "PyTorch tutorial TP_tutorial, the plan of a transformer block before that of embedding and output"
    dims = Megatron.dims - {"vocabulary"}
