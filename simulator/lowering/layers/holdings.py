"""Weights of a layer on one GPU, as its layout has them."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.lowering.layers.layer_context import LayerContext
from simulator.workload.graph import Product
from simulator.workload.operator import LayerPart, Operator

__all__ = ["expert_parameters", "parameters", "small_parameters", "weight_tensors"]


def parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Weights on one GPU [count]."""
    return sum((o.parameters - _small(ctx, o)) / _ways(ctx, o) + _small(ctx, o) for o in part.operators)


def small_parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Of them, those of norms and of biases behind sums, which every tensor-parallel rank has in full [count]."""
    return float(sum(_small(ctx, o) for o in part.operators))


def expert_parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Of them, those of experts [count]."""
    return sum(o.parameters / _ways(ctx, o) for o in part.operators if _of_experts(o))


def weight_tensors(ctx: LayerContext, part: LayerPart, norm: str) -> tuple[float, ...]:
    """Sizes of the weight tensors on one GPU, those of routed experts left out [count].

    Args:
        norm: kind of norm: a layer norm has two tensors.
    """
    return tuple(size for o in part.operators for size in _tensors(ctx, o, norm))


def _tensors(ctx: LayerContext, o: Operator, norm: str) -> Iterator[float]:
    if not o.parameters or _of_experts(o):
        return
    ways, small = _ways(ctx, o), _small(ctx, o)
    if o.work == "gemm":
        batch, _, n, k = o.shape
        main = batch * n * k
        yield from (main / ways * width / n for width in o.widths)
        bias = o.parameters - main
        if bias:
            yield bias if small else bias / ways
    elif o.work == "memory_bound" and norm == "layer_norm":
        yield from (o.parameters / 2.0, o.parameters / 2.0)
    else:
        yield from (size for size in ((o.parameters - small) / ways, small) if size)


def _of_experts(o: Operator) -> bool:
    return isinstance(o.op, Product) and bool(o.op.matrices) and o.op.of_experts


def _ways(ctx: LayerContext, o: Operator) -> float:
    """How many ways the weights of an operator are divided: as its matrices, beside which all else is small."""
    first = next((w for w in o.op.weights if w.role == "weight"), None)
    return ctx.ways(first.dims) if first is not None else 1


def _small(ctx: LayerContext, o: Operator) -> int:
    """Weights that are no matrices and lie whole: of kernels, and of products whose sums are added up."""
    if isinstance(o.op, Product) and not (ctx.division(o).rows and not o.op.of_experts):
        return 0
    return sum(w.elements for w in o.op.weights if w.role != "weight" and not ctx.layout.along(w.dims))
