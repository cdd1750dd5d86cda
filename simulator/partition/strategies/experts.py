"""Experts on mesh axes of their own: dealt out over one, their inner width over a second, the rows they take over a third.

The tensor-parallel ranks either split each expert (`expert_tensor` has all of them) or have rows of their own (`expert_rows` has).
Products of experts leave their sums in terms: the exchange of rows that follows adds them up where it collects rows from the ranks
that split an expert.
Source: Lepikhin et al., GShard, arXiv 2006.16668; Megatron-LM's token dispatcher.
"""

from __future__ import annotations

from simulator.partition.layout import Rule, rule

__all__ = ["EXPERT", "EXPERT_ROWS", "EXPERT_TENSOR", "ROWS", "RULES"]

EXPERT, EXPERT_TENSOR, EXPERT_ROWS = "expert", "expert_tensor", "expert_rows"
"""Mesh axes: ranks over which experts are dealt out, that split each, and that have rows of their own."""
ROWS = "expert_rows"
"""The dimension of rows at their experts; the fullest rank may have more than its share."""

RULES: tuple[Rule, ...] = (rule(EXPERT, "experts"), rule(EXPERT_TENSOR, "expert_ffn"), rule(EXPERT_ROWS, ROWS))
