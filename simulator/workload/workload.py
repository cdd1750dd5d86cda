"""A workload: which model, on what batches, in which numbers, with which optimizer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from simulator.remembered import hashed_once, kept
from simulator.workload.blocks.mixer import MIXERS
from simulator.workload.blocks.mixer.state_space import StateSpace
from simulator.workload.layer_kind import layer_kind
from simulator.workload.model import Model
from simulator.workload.precision import Precision, precision_named

__all__ = ["Workload"]

_FROZEN = 2.0 / 3.0
"""Work on a frozen weight over that on a trained one: an output and an input gradient, no weight gradient."""


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained.

    Args:
        model: shapes.
        sequence_length: tokens per sequence; of an encoder-decoder, in the encoder.
        global_batch_size: sequences per step, over all replicas.
        precision: the name of one of `simulator.workload.precision.PRECISIONS`.
        optimizer: name of an optimizer.
        document_length: mean tokens of the documents that are packed into a sequence, each seen by attention alone; None = one
            document per sequence.
        document_spread: standard deviation of the documents' lengths over their mean.
        target_length: tokens per sequence in the decoder of an encoder-decoder; 0 = the model's own.
    """

    model: Model
    sequence_length: int
    global_batch_size: int
    precision: str = "bf16"
    optimizer: str = "adam"
    document_length: float | None = None
    document_spread: float = 0.0
    target_length: int = 0

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

    @kept
    def numbers(self) -> Precision:
        """The number formats."""
        return precision_named(self.precision)

    @property
    def decoder_length(self) -> int:
        """Tokens of a sequence in the decoder of an encoder-decoder; 0 for other models."""
        return (self.target_length or self.model.target_length) if self.model.encoder_layers else 0

    @property
    def unit(self) -> str:
        """What is counted per second: tokens, or images of a network of layers."""
        return "image" if self.model.network else "token"

    @property
    def batch_words(self) -> str:
        """The batch of a step in words, and how long its sequences might be.

        >>> from simulator.workload.model import load_model
        >>> Workload(model=load_model("resnet50"), sequence_length=1, global_batch_size=2048).batch_words
        '2,048 images per step'
        >>> Workload(model=load_model("qwen3_8b"), sequence_length=8192, global_batch_size=64).batch_words
        '64 sequences of 8,192 tokens per step (the model takes up to 40,960)'
        """
        many, longest = f"{self.global_batch_size:,}", self.model.sequence_length
        if self.model.network:
            return f"{many} images per step"
        more = f" (the model takes up to {longest:,})" if self.sequence_length < longest else ""
        return f"{many} sequences of {self.sequence_length:,} tokens per step{more}"

    @property
    def tokens(self) -> int:
        """Tokens per step, of both stacks of an encoder-decoder; images of a network of layers."""
        if self.model.network:
            return self.global_batch_size
        return (self.sequence_length + self.decoder_length) * self.global_batch_size

    @property
    def model_flops(self) -> float:
        """Model FLOP per step: forward and backward GEMMs and full (not causal) attention, no recompute, no padding.

        6 FLOP per token and matrix weight that it meets (of the experts only those it is sent to), head included, plus
        12 x query width x sequence_length per token and layer with attention (Narayanan et al. SC 2021, equation 3, with the
        factor for recompute left out; with unlike heads the query width is the mean of theirs and the values').  Layers that attend
        to a window count as if they saw the whole sequence, as causal ones do, so that the figure has one meaning for all models;
        of packed documents attention counts inside each.
        Layers that carry a state count the products of their scan by chunks.
        Multi-token prediction modules count as layers with a head each.  A frozen weight has no gradient of its own: 4 FLOP, not 6.
        Networks of layers count three times the products of their forward pass.
        """
        m, length = self.model, self.sequence_length
        if m.network:
            return 6.0 * self.global_batch_size * m.products
        if m.encoder_layers:
            return 6.0 * self.global_batch_size * self._encoder_decoder()
        score = float(m.heads * (m.head_dim + m.value_head_dim) * self.attended)
        per_token = 0.0
        for name, count in Counter(m.layer_kinds).items():
            per_token += count * self._layer(name, score)
        per_token += m.mtp_layers * (2 * m.hidden**2 + self._layer(m.layer_kinds[-1], score))
        outputs = float(m.vocabulary * m.hidden * (1 + m.mtp_layers))
        if m.architecture == "vision":
            return 6.0 * self.global_batch_size * (length * (per_token + m.patch_inputs * m.hidden) + outputs)
        outputs += m.hidden**2 if m.head_transform else 0
        outputs *= _FROZEN if m.lora_rank else 1.0
        return 6.0 * self.tokens * (per_token + outputs)

    def _layer(self, name: str, score: float) -> float:
        kind = layer_kind(name)
        mixer = None if kind.mixer == "none" else MIXERS.get(kind.mixer)
        if mixer is None:
            score = 0.0
        elif isinstance(mixer, StateSpace):
            score = mixer.products(self.model, self.sequence_length)
        return self.model.seen_weights(kind) - (1.0 - _FROZEN) * self.model.frozen_weights(kind) + score

    def _encoder_decoder(self) -> float:
        """Weight products per sequence: a decoder's second attention takes keys and values from the encoder's tokens."""
        m, source, target = self.model, self.sequence_length, self.decoder_length
        width = m.heads * m.head_dim
        encoder = m.encoder_layers * source * (m.attention_weights + m.mlp_weights(m.ffn) + 2 * width * source)
        outward, kept = 2 * m.hidden * m.kv_heads * m.head_dim, 2 * m.hidden * width
        per_token = m.attention_weights + kept + m.mlp_weights(m.ffn) + 2 * width * (target + source)
        return float(encoder + m.layers * (target * per_token + source * outward) + target * m.vocabulary * m.hidden)
