"""A workload: which model, on what batches, in which numbers, with which optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.workload.model import Model
from simulator.workload.precision import Precision, precision_named

__all__ = ["Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained.

    Args:
        model: shapes.
        sequence_length: tokens per sequence.
        global_batch_size: sequences per step, over all replicas.
        precision: fp32, tf32, fp16, bf16, fp8, mxfp8 or nvfp4.
        optimizer: name of an optimizer.
    """

    model: Model
    sequence_length: int
    global_batch_size: int
    precision: str = "bf16"
    optimizer: str = "adam"

    @property
    def numbers(self) -> Precision:
        """The number formats."""
        return precision_named(self.precision)

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.sequence_length * self.global_batch_size

    @property
    def model_flops(self) -> float:
        """Model FLOP per step: forward and backward GEMMs and full (not causal) attention, no recompute, no padding.

        6 FLOP per token and matrix weight that it meets (of the experts only those it is sent to), head included, plus
        12 x layers x query width x sequence_length per token (Narayanan et al. SC 2021, equation 3, with the factor for
        recompute left out; with unlike heads the query width is the mean of theirs and the values').
        """
        m = self.model
        sparse = sum(m.moe_layers)
        seen = m.hidden * m.experts + m.experts_per_token * m.mlp_weights(m.expert_ffn)
        weights = m.layers * m.attention_weights + (m.layers - sparse) * m.mlp_weights(m.ffn)
        weights += sparse * (seen + m.mlp_weights(m.shared_expert_ffn)) + m.vocabulary * m.hidden
        attention = m.layers * m.heads * (m.head_dim + m.value_head_dim) * self.sequence_length
        return 6.0 * self.tokens * (weights + attention)
