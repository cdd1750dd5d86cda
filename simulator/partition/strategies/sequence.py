"""Sequence parallelism: what tensor parallelism leaves whole is divided by its tokens, over the same ranks.

The all_reduces of tensor parallelism become a reduce_scatter and an all_gather, each half as large.
Source: Korthikanti et al., arXiv 2205.05198, section 4.2.
"""

from __future__ import annotations

from simulator.partition.layout import Rule, rule
from simulator.partition.strategies.base import TENSOR

__all__ = ["TOKENS"]

TOKENS: Rule = rule(TENSOR, "sequence", "source_sequence", "copies", "distances")
"""Behind the rules of a strategy: `copies` are rows of tokens before they go to their experts, `distances` those between tokens."""
