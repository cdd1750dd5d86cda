"""The contract of a model family: its layers as graphs."""

from __future__ import annotations

import abc
import functools

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import LayerGraph, Tensor
from simulator.workload.layer_case import LayerCase
from simulator.workload.operator import LayerPart
from simulator.workload.operators import operators
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

    def graph(self, case: LayerCase) -> LayerGraph:
        """Return one kind of layer for one microbatch, verified."""
        g = LayerBuilder(case)
        graph = g.graph(case.kind, self.build(g, case.kind))
        verify(graph)
        return graph

    def part(self, case: LayerCase) -> LayerPart:
        """Return the operators of one kind of layer.  Plans of one job ask for few different ones."""
        return parts(self, case)

    def input_bytes(self, graph: LayerGraph) -> float:
        """Return the bytes of a layer's input: of the embedding, the token numbers."""
        return graph.inputs[0].bytes

    def boundary_bytes(self, graph: LayerGraph) -> float:
        """Return the bytes that cross a pipeline boundary in front of a layer."""
        return sum(t.bytes for t in graph.inputs if t.role == "stream") or self.input_bytes(graph)


@functools.lru_cache(maxsize=512)
def parts(family: ModelFamily, case: LayerCase) -> LayerPart:
    """Return what `ModelFamily.part` does, made once for equal cases."""
    graph = family.graph(case)
    return LayerPart(
        kind=graph.kind,
        operators=operators(graph),
        input_bytes=family.input_bytes(graph),
        boundary_bytes=family.boundary_bytes(graph),
    )
