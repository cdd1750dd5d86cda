"""Weights of a layer on one GPU, as its layout has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from simulator.lowering.layers.layer_context import LayerContext
from simulator.partition.strategies.base import TENSOR
from simulator.workload.graph import Kernel, Product, Tensor
from simulator.workload.operator import LayerPart, Operator

__all__ = ["expert_parameters", "parameters", "shared_parameters", "small_parameters", "weight_tensors"]


def parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Weights on one GPU [count]."""
    return sum(_held(ctx, o.op.weights) for o in part.operators)


def small_parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Of them, those whose gradients come out as terms, which the tensor-parallel ranks add up [count].

    They lie whole on every rank and meet a part of the tokens, or of the heads, on each: norms and routers under sequence parallelism.
    """
    return sum(_held(ctx, tuple(w for w in o.op.weights if _in_terms(ctx, o, w))) for o in part.operators)


def shared_parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Of them, those that some tensor-parallel ranks share, which have a term each of their gradients: of keys and values of which there
    are fewer heads than ranks [count]."""
    return sum(
        _held(ctx, tuple(w for w in o.op.weights if ctx.layout.shared(w.dims, TENSOR) > 1)) for o in part.operators
    )


def expert_parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Of them, those of experts [count]."""
    return sum(_held(ctx, o.op.weights) for o in part.operators if _of_experts(ctx, o))


def weight_tensors(ctx: LayerContext, part: LayerPart, norm: str) -> tuple[float, ...]:
    """Sizes of the weight tensors on one GPU, those of routed experts left out [count].

    Args:
        norm: kind of norm: a layer norm has two tensors.
    """
    return tuple(size for o in part.operators for size in _tensors(ctx, o, norm))


def _tensors(ctx: LayerContext, o: Operator, norm: str) -> Iterator[float]:
    """Those of an operator: of each product, and of all that is small together."""
    if not o.parameters or _of_experts(ctx, o):
        return
    matrices = tuple(w for w in o.op.weights if w.role == "weight")
    small = _held(ctx, tuple(w for w in o.op.weights if w.role != "weight"))
    if isinstance(o.op, Product) and matrices:
        each = iter(matrices)
        yield from (_held(ctx, tuple(itertools.islice(each, n))) for n in o.op.kernels or (len(matrices),))
    elif o.work == "memory_bound" and norm == "layer_norm":
        small /= 2.0
        yield small
    elif matrices:
        yield _held(ctx, matrices)
    if small:
        yield small


def _of_experts(ctx: LayerContext, o: Operator) -> bool:
    return isinstance(o.op, Product) and ctx.division(o).around.experts


def _held(ctx: LayerContext, weights: tuple[Tensor, ...]) -> float:
    """Of some weights, those on one GPU [count]."""
    return float(sum(w.elements / ctx.ways(w.dims) for w in weights))


def _in_terms(ctx: LayerContext, o: Operator, weight: Tensor) -> bool:
    """Whether tensor-parallel ranks have a term each of a weight's gradient: it lacks the dimension by which they divide the work."""
    op = o.op
    if isinstance(op, Product) and weight.role == "weight":
        return ctx.division(o).around.adds_weights
    made = op.moves[0].dims if isinstance(op, Kernel) else op.outputs[0].dims
    return TENSOR in ctx.layout.axes(made) and TENSOR not in ctx.layout.axes(weight.dims)
