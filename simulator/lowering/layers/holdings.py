"""Weights of a layer on one GPU, as its layout has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from simulator.lowering.layers.layer_context import LayerContext
from simulator.partition.layout import kind_of
from simulator.partition.strategies.base import TENSOR
from simulator.workload.graph import Kernel, Product, Tensor
from simulator.workload.operator import LayerPart, Operator

__all__ = [
    "MESH_WEIGHTS",
    "Frozen",
    "Matrix",
    "WeightTensor",
    "expert_parameters",
    "frozen_parameters",
    "held_by",
    "parameters",
    "summed_parameters",
    "trained_by",
    "weight_matrices",
    "weight_tensors",
]


class Matrix(NamedTuple):
    """A matrix of weights on one GPU: how many like it, rows and columns, and whether routed experts' own ranks hold it."""

    many: int
    rows: int
    columns: int
    experts: bool


class Frozen(NamedTuple):
    """Weights on one GPU that are never trained [count]: all, those of experts that other sets of ranks hold, and of both those that stand
    in fewer bits (`Model.frozen_format`)."""

    all: float = 0.0
    experts: float = 0.0
    narrow: float = 0.0
    narrow_experts: float = 0.0


class WeightTensor(NamedTuple):
    """A tensor of weights on one GPU: its size [count], whether it is frozen, and whether it stands in fewer bits."""

    size: float
    frozen: bool = False
    narrow: bool = False


MESH_WEIGHTS = "weight"
"""What those are called that lie on some axes of a mesh, matrices among them: where gradients are sharded each rank adds its shard."""


def parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Weights on one GPU [count]."""
    return sum(held_by(ctx, o) for o in part.operators)


def frozen_parameters(ctx: LayerContext, part: LayerPart, experts_apart: bool) -> Frozen:
    """Return those that are never trained."""
    some = [
        (_held(ctx, (w,)), experts_apart and _of_experts(ctx, o), w.element < ctx.e)
        for o in part.operators
        for w in o.op.weights
        if w.frozen
    ]
    return Frozen(
        all=sum(held for held, _, _ in some),
        experts=sum(held for held, apart, _ in some if apart),
        narrow=sum(held for held, _, narrow in some if narrow),
        narrow_experts=sum(held for held, apart, narrow in some if apart and narrow),
    )


def trained_by(ctx: LayerContext, o: Operator) -> float:
    """Return an operator's weights on one GPU that are trained [count]."""
    return _held(ctx, tuple(w for w in o.op.weights if not w.frozen))


def held_by(ctx: LayerContext, o: Operator) -> float:
    """Return an operator's weights on one GPU [count]."""
    return _held(ctx, o.op.weights)


def summed_parameters(ctx: LayerContext, part: LayerPart) -> tuple[tuple[str, tuple[str, ...], float], ...]:
    """Of them, those whose gradients come out as terms, once a step added up: what they are, mesh axes of the ranks that add, count.

    They lie alike on these ranks, each of which meets other tokens, or other heads: norms and routers under sequence parallelism, vectors
    on meshes, and keys and values of which there are fewer heads than ranks.
    """
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for o in part.operators:
        each: dict[tuple[str, ...], list[Tensor]] = {}
        for w in o.op.weights:
            if w.frozen:
                continue
            axes = _in_terms(ctx, o, w)
            if axes:
                each.setdefault(axes, []).append(w)
        for axes, weights in each.items():
            key = "norm" if TENSOR in axes else MESH_WEIGHTS, ctx.group(axes)
            found[key] = found.get(key, 0.0) + _held(ctx, tuple(weights))
    shared = sum(
        _held(ctx, tuple(w for w in o.op.weights if not w.frozen and ctx.layout.shared(w.dims, TENSOR, kind_of(w)) > 1))
        for o in part.operators
    )
    if shared:
        found["key and value", ctx.groups.heads] = shared
    return tuple((what, axes, held) for (what, axes), held in found.items())


def expert_parameters(ctx: LayerContext, part: LayerPart) -> float:
    """Of them, those of experts [count]."""
    return sum(held_by(ctx, o) for o in part.operators if _of_experts(ctx, o))


def weight_tensors(ctx: LayerContext, part: LayerPart, norm: str, experts_apart: bool) -> tuple[WeightTensor, ...]:
    """The weight tensors on one GPU.

    Args:
        norm: kind of norm: a layer norm has two tensors.
        experts_apart: other sets of ranks hold routed experts than the rest: these are left out; else each of their products is one
            tensor of all experts.
    """
    return tuple(
        WeightTensor(size, o.op.frozen, any(w.element < ctx.e for w in o.op.weights))
        for o in part.operators
        if not (experts_apart and _of_experts(ctx, o))
        for size in _tensors(ctx, o, norm)
    )


def weight_matrices(ctx: LayerContext, part: LayerPart, experts_apart: bool) -> tuple[Matrix, ...]:
    """The matrices of a layer as one GPU holds them: those that stand side by side, as of experts, one by one."""
    found = []
    for o in part.operators:
        if isinstance(o.op, Product) and o.op.matrices and not o.op.frozen:
            apart = experts_apart and _of_experts(ctx, o)
            for left, right, out in o.op.pairs:
                given, made = ({d.serves or d.name for d in t.dims} for t in (left, out))
                many = rows = columns = 1
                for dim in ctx.layout.local_tensor(right).dims:
                    if (dim.serves or dim.name) in given:
                        columns *= dim.size
                    elif (dim.serves or dim.name) in made:
                        rows *= dim.size
                    else:
                        many *= dim.size
                found.append(Matrix(many, rows, columns, apart))
    return tuple(found)


def _tensors(ctx: LayerContext, o: Operator, norm: str) -> Iterator[float]:
    """Those of an operator: of each product, and of all that is small together."""
    if not o.parameters:
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
    return float(sum(w.elements / ctx.layout.ways(w.dims, kind_of(w)) for w in weights))


def _in_terms(ctx: LayerContext, o: Operator, weight: Tensor) -> tuple[str, ...]:
    """Axes whose ranks have a term each of a weight's gradient: it lacks the dimension by which they divide the work."""
    op = o.op
    if isinstance(op, Product) and weight.role == "weight":
        return ctx.division(o).around.terms
    made = op.moves[0].dims if isinstance(op, Kernel) else op.outputs[0].dims
    lies = ctx.layout.axes(weight.dims, kind_of(weight))
    return tuple(axis for axis in ctx.layout.axes(made) if axis in ctx.layout.tensor and axis not in lies)
