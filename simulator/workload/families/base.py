"""The contract of a model family: its layers as graphs."""

from __future__ import annotations

import abc
import functools
from typing import Any

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import LayerGraph, Tensor
from simulator.workload.layer_kind import MTP_LAYER, layer_kind
from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle, LayerPart
from simulator.workload.operators import operators
from simulator.workload.precision import Precision
from simulator.workload.verify import verify

__all__ = ["ModelFamily", "parts"]


class ModelFamily(abc.ABC):
    """A family of models that share one layer structure."""

    name: str
    source: str
    like_boundaries = True
    """Whether messages between pipeline ranks are all as large as the largest, as codes with one buffer for all have them."""

    @abc.abstractmethod
    def build(self, g: LayerBuilder, kind: str) -> Tensor:
        """Add the operations of one kind of layer; return its output.

        Args:
            kind: "embedding", a name of `LayerKind`, "head", ...
        """

    def graph(
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
    ) -> LayerGraph:
        """Return one kind of layer for one microbatch, verified.

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
        own = layer_kind(model.layer_kinds[-1] if kind == MTP_LAYER else kind)
        g = LayerBuilder(model, sequences, sequence_length, precision, style, vocabulary, context, peers, own, source)
        output = self.build(g, kind)
        graph = g.graph(kind, output)
        verify(graph)
        return graph

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
        """Return the operators of one kind of layer; arguments as in `graph`.  Plans of one job ask for few different ones."""
        return parts(
            self, model, kind, sequences, sequence_length, precision, style, vocabulary, context, peers, source
        )

    def input_bytes(self, graph: LayerGraph) -> float:
        """Return the bytes of a layer's input: of the embedding, the token numbers."""
        return graph.inputs[0].bytes

    def boundary_bytes(self, graph: LayerGraph) -> float:
        """Return the bytes that cross a pipeline boundary in front of a layer."""
        return sum(t.bytes for t in graph.inputs if t.role == "stream") or self.input_bytes(graph)


@functools.lru_cache(maxsize=512)
def parts(family: ModelFamily, *arguments: Any) -> LayerPart:
    """Return what `ModelFamily.part` does, made once for equal arguments."""
    graph = family.graph(*arguments)
    return LayerPart(
        kind=graph.kind,
        operators=operators(graph),
        input_bytes=family.input_bytes(graph),
        boundary_bytes=family.boundary_bytes(graph),
    )
