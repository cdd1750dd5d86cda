"""Memory of operands that are gathered for products on meshes of several axes: in passing, and kept until their gradients."""

from __future__ import annotations

import math

from simulator.lowering.layers.division import Hops
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.panels import in_panels
from simulator.program.program import Tensor
from simulator.workload.graph import Product
from simulator.workload.operator import LayerPart, Operator, Saved

__all__ = ["gathered_bytes", "kept_ways", "kept_weights"]


def gathered_bytes(ctx: LayerContext, part: LayerPart) -> tuple[float, float]:
    """Return the bytes of the largest operands gathered for a product, and for its gradients, beside what is kept of them.

    By panels one of each operand stands at a time, backward one of a gradient in its place.
    """
    forward = backward = 0.0
    for o in part.operators:
        if not isinstance(o.op, Product) or not o.has_weight:
            continue
        d = ctx.division(o)
        b, m, n, k = d.shape
        x, w, share = b * m * k * ctx.e, b * n * k * ctx.e, 1
        if in_panels(ctx, d):
            share = d.around.gathers[0].ranks
        there = _if(d.around.gathers, x) + _if(d.around.weights, w)
        again = 0.0 if ctx.layout.keeps_gathered else there
        back = _if(d.around.gathers_back, b * m * n * ctx.e) + _if(d.around.sums_back, x) + _if(d.around.scatters, w)
        forward = max(forward, 0.0 if ctx.layout.keeps_gathered else there / share)
        backward = max(backward, (again + back) / share)
    return forward, backward


def kept_ways(ctx: LayerContext, o: Operator, saved: Saved) -> float:
    """Return how many ways a tensor is divided as it is kept: where a layout keeps what it gathered, as the product reads it; without
    end where nothing of it is kept."""
    ways = ctx.ways(saved.dims, saved.joined)
    if saved.gathered:
        return 1.0 if ways > 1.0 else math.inf
    if ctx.layout.keeps_gathered and isinstance(o.op, Product) and o.has_weight and saved.dims == o.op.inputs[0].dims:
        ways /= _ranks(ctx.division(o).around.gathers)
    return ways


def kept_weights(ctx: LayerContext, part: LayerPart) -> list[Tensor]:
    """Return the operands of products that stand from forward to backward beside the weights that ranks own: gathered, or, under
    autocast, cast."""
    if not (ctx.layout.keeps_gathered or ctx.style.autocast):
        return []
    size = 0.0
    for o in part.operators:
        cast = ctx.style.autocast and not o.op.frozen
        if isinstance(o.op, Product) and o.has_weight and (cast or ctx.division(o).around.weights):
            d = ctx.division(o)
            b, _, _, k = d.shape
            size += b * sum(d.widths) * k * ctx.e
    name = "weights, cast" if ctx.style.autocast else "weights, gathered"
    return [Tensor(name=name, category="activations", bytes=size)] if size else []


def _ranks(hops: Hops) -> int:
    return math.prod(hop.ranks for hop in hops)


def _if(hops: Hops, size: float) -> float:
    return size if hops else 0.0
