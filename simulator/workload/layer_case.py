"""What is asked of a model family: one kind of layer, for so many tokens, in number formats and by the kernels of a code."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.remembered import hashed_once
from simulator.workload.model_fields import ModelFields
from simulator.workload.operator import KernelStyle
from simulator.workload.precision import Precision

__all__ = ["LayerCase"]


@hashed_once
@dataclass(frozen=True, kw_only=True)
class LayerCase:
    """One kind of layer of a model, for one microbatch.

    Args:
        model: the shapes.
        kind: which layer: "embedding", a name of `LayerKind`, "head", ...
        sequences: sequences in the microbatch.
        length: tokens per sequence (of the slice, when sequences are sliced).
        precision: number formats.
        style: which kernels the framework has.
        vocabulary: padded vocabulary [rows of the embedding].
        context: tokens of the same sequences that ran before (sequence slices): attention sees them too.
        peers: ranks that share each sequence (context parallelism); `length` is one rank's share, dealt out so that causal attention is
            equal work on all.
        source: tokens per sequence of the encoder, in an encoder-decoder (`length` is that of the kind's own stack).
    """

    model: ModelFields
    kind: str
    sequences: int
    length: int
    precision: Precision
    style: KernelStyle
    vocabulary: int
    context: int = 0
    peers: int = 1
    source: int = 0
