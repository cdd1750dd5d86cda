"""The contract of a model family: its layers as operators."""

from __future__ import annotations

import abc

from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle, LayerPart
from simulator.workload.precision import Precision

__all__ = ["Architecture"]


class Architecture(abc.ABC):
    """A family of models that share one layer structure."""

    name: str
    source: str

    @abc.abstractmethod
    def part(
        self,
        model: Model,
        kind: str,
        sequences: int,
        sequence_length: int,
        precision: Precision,
        style: KernelStyle,
        vocabulary: int,
        context: int = 0,
        peers: int = 1,
        source: int = 0,
    ) -> LayerPart:
        """Return the operators of one kind of layer ("embedding", a name of `LayerKind`, "head", ...) for one microbatch.

        Args:
            model: the shapes.
            kind: which layer.
            sequences: sequences in the microbatch.
            sequence_length: tokens per sequence (of the slice, when sequences are sliced).
            precision: number formats.
            style: which kernels the framework has.
            vocabulary: padded vocabulary [rows of the embedding].
            context: tokens of the same sequences that ran before (sequence slices): attention sees them too.
            peers: ranks that share each sequence (context parallelism); `sequence_length` is one rank's share, dealt out so that
                causal attention is equal work on all.
            source: tokens per sequence of the encoder, in an encoder-decoder (`sequence_length` is that of the kind's own stack).
        """
