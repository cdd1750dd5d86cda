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
        document_length: mean tokens of the documents that are packed into a sequence, each seen by attention alone; None = one
            document per sequence.
        document_spread: standard deviation of the documents' lengths over their mean.
    """

    model: Model
    sequence_length: int
    global_batch_size: int
    precision: str = "bf16"
    optimizer: str = "adam"
    document_length: float | None = None
    document_spread: float = 0.0

    @property
    def attended(self) -> float:
        """Tokens of the document that a token lies in, on average: mean x (1 + spread^2), at most a sequence.

        Attention is paid by token pairs, so long documents count more: sum of l^2 over sum of l.

        >>> from simulator.workload.model import load_model
        >>> packed = Workload(
        ...     model=load_model("gpt2"), sequence_length=8192, global_batch_size=8, document_length=1024, document_spread=1.0
        ... )
        >>> packed.attended
        2048.0
        """
        if self.document_length is None:
            return float(self.sequence_length)
        return min(float(self.sequence_length), self.document_length * (1.0 + self.document_spread**2))

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
        recompute left out; with unlike heads the query width is the mean of theirs and the values').  Of packed documents, attention
        counts inside each.
        """
        m = self.model
        sparse = sum(m.moe_layers)
        seen = m.hidden * m.experts + m.experts_per_token * m.mlp_weights(m.expert_ffn)
        weights = m.layers * m.attention_weights + (m.layers - sparse) * m.mlp_weights(m.ffn)
        weights += sparse * (seen + m.mlp_weights(m.shared_expert_ffn)) + m.vocabulary * m.hidden
        attention = m.layers * m.heads * (m.head_dim + m.value_head_dim) * self.attended
        return 6.0 * self.tokens * (weights + attention)
