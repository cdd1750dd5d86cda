"""What is counted of a model: weights, all of them and those that one token meets, read off the graphs of its layers."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from simulator.workload.graph import LayerGraph, Lookup, Op, Product, Tensor
from simulator.workload.layer_case import LayerCase
from simulator.workload.model_fields import ModelFields
from simulator.workload.operator import KernelStyle
from simulator.workload.precision import precision_named

__all__ = ["Counts", "counts", "forward_products", "model_graph", "module_weights", "own_weights"]

_APART = KernelStyle(joined_qkv=False, joined_gate=False, joined_expert_gate=False)


@dataclass(frozen=True, slots=True)
class Counts:
    """Weights of one kind of layer [count].

    Args:
        parameters: all.
        routed: of these those of routed experts.
        matrices: elements of matrices that meet tokens; `routed_matrices` of them of routed experts, `mixing` in front of the MLP.
        frozen: parameters that are never trained; `frozen_matrices` of those that meet tokens, `frozen_routed` of these of routed experts.
    """

    parameters: int
    routed: int
    matrices: int
    routed_matrices: int
    mixing: int
    frozen: int = 0
    frozen_matrices: int = 0
    frozen_routed: int = 0


def model_graph(model: ModelFields, kind: str) -> LayerGraph:
    """Return the graph of one kind of layer of a model, for one sequence; each matrix a product of its own, as adapters count."""
    from simulator.workload.families import FAMILIES

    case = LayerCase(
        model=model,
        kind=kind,
        sequences=1,
        length=model.sequence_length,
        precision=precision_named("bf16"),
        style=_APART,
        vocabulary=model.vocabulary,
        source=model.sequence_length,
    )
    graph: LayerGraph = FAMILIES.get(model.architecture).graph(case)
    return graph


@functools.lru_cache(maxsize=1024)
def counts(model: ModelFields, kind: str) -> Counts:
    """Count one kind of layer of a model."""
    graph = model_graph(model, kind)
    routed = [w for op in graph.ops if _routed(op) for w in op.weights]
    matrices = [(op, w) for op in graph.ops if isinstance(op, Product) and _meets_tokens(op) for w in op.matrices]
    return Counts(
        parameters=_sum(graph.weights),
        routed=_sum(routed),
        matrices=_sum([w for _, w in matrices]),
        routed_matrices=_sum([w for op, w in matrices if _routed(op)]),
        mixing=_sum([w for op, w in matrices if op.captured == "attn"]),
        frozen=_sum([w for w in graph.weights if w.frozen]),
        frozen_matrices=_sum([w for _, w in matrices if w.frozen]),
        frozen_routed=_sum([w for op, w in matrices if w.frozen and _routed(op)]),
    )


@functools.lru_cache(maxsize=4096)
def forward_products(model: ModelFields, kind: str) -> float:
    """Return the multiplications of one kind of layer for one sequence, forward."""
    return float(sum(math.prod(op.shape) for op in model_graph(model, kind).ops if isinstance(op, Product)))


def own_weights(model: ModelFields, *kinds: str) -> dict[str, Tensor]:
    """Return the weights of the ends of a model by their names, so that what several of them share is there once."""
    return {w.name: w for kind in kinds for w in model_graph(model, kind).weights}


def module_weights(model: ModelFields, kind: str) -> int:
    """Return the weights of a part that shares embedding and output with the model, those left out."""
    ops = model_graph(model, kind).ops
    owned = [w for op in ops if not isinstance(op, Lookup) for w in op.weights]
    return _sum([w for w in owned if all(d.name != "vocabulary" for d in w.dims)])


def _routed(op: Op) -> bool:
    return any(d.name == "expert_rows" for t in op.inputs[:1] for d in t.dims)


def _meets_tokens(op: Product) -> bool:
    """Whether its rows are tokens, not distances between them."""
    return bool({d.name for d in op.inputs[0].dims} & {"batch", "expert_rows"})


def _sum(weights: list[Tensor] | tuple[Tensor, ...]) -> int:
    return sum(w.elements for w in weights)
