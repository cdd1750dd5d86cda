"""Tensor parallelism as Megatron-LM has it: whole heads, columns and then rows of the MLP, parts of the vocabulary.

A product whose output is divided (columns) needs the gradients of its input summed, one whose depth is divided (rows) its output.
"""

from __future__ import annotations

from simulator.partition.strategies.base import Strategy

__all__ = ["Megatron"]


class Megatron(Strategy):
    """Heads, inner widths and the vocabulary."""

    name = "megatron"
    source = "Shoeybi et al., arXiv 1909.08053, section 3"
    dims = frozenset(
        (
            "heads",
            "ffn",
            "vocabulary",
            "projected",
            "state_heads",
            "state_groups",
            "state_channels",
            "state_inner",
            "convolved",
        )
    )
