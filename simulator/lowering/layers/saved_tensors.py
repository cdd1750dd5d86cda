"""What a layer keeps from its forward to its backward, what of it is made again instead, and what stands while it runs."""

from __future__ import annotations

from simulator.lowering.layers.gathered import kept_ways, kept_weights
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.recompute import Recompute, dropped
from simulator.lowering.layers.saved_values import kept_values
from simulator.program.program import Tensor
from simulator.workload.operator import LayerPart

__all__ = ["marks", "saved_tensors", "widest_output"]


def widest_output(ctx: LayerContext, part: LayerPart, stream: float, recompute: Recompute) -> float:
    """Return bytes of the largest output of an operator, less what operators behind it keep, which is counted as kept from the start.

    Args:
        stream: how many ways the layer's input is divided.
    """
    widest, later = part.input_bytes / (stream if len(ctx.layout.tensor) > 1 else 1.0), 0.0
    out = dropped(part, recompute, ctx.sends_rows)
    for i, o in reversed(list(enumerate(part.operators))):
        if o.work == "gemm":
            b, m, n, _ = ctx.division(o).shape
            widest = max(widest, b * m * n * ctx.e / o.op.outputs[0].turns - later)
        kept = (s for j, s in enumerate(o.saved) if (i, j) not in out and not s.idle)
        later += sum(s.bytes / kept_ways(ctx, o, s) for s in kept)
    return widest


def marks(kind: str, name: str, size: float) -> tuple[Tensor, ...]:
    """Return temporaries of a kind of layer, () for none."""
    return (Tensor(name=f"{kind} {name}", category="workspace", bytes=size),) if size else ()


def saved_tensors(
    ctx: LayerContext, part: LayerPart, recompute: Recompute, ending: str, input_ways: float
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], float]:
    """Return tensors kept for backward, those made again in backward instead, of layers recomputed together of all of them; and the bytes
    kept of the rows of experts.

    Args:
        input_ways: how many ways the layer's input is divided as it is kept.
    """
    out = dropped(part, recompute, ctx.sends_rows)
    kept: list[Tensor] = []
    again: list[Tensor] = []
    rows = 0.0
    for i, o in enumerate(part.operators):
        for j, s in enumerate(o.saved):
            if s.bytes and (recompute.kind == "operators" or not s.idle):
                tensor = Tensor(name=s.name, category=s.category, bytes=s.bytes / kept_ways(ctx, o, s))
                if not tensor.bytes:
                    continue
                (again if (i, j) in out else kept).append(tensor)
                rows += tensor.bytes if s.of_experts and (i, j) not in out else 0.0
    kept += kept_weights(ctx, part) if recompute.kind not in ("full", "policy") else []
    together = recompute.layers if recompute.method == "uniform" else 1
    if recompute.kind in ("full", "policy"):
        size = part.input_bytes / input_ways
        kept = [] if ending else [Tensor(name="layer input", category="activations", bytes=size)]
        values = kept_values(part, recompute.saves, ctx.e)
        made = [Tensor(name=v.name, category="activations", bytes=v.bytes / ctx.ways(v.dims)) for v in values]
        kept += made
        rows = sum((t.bytes for t, v in zip(made, values, strict=True) if v.of_experts), 0.0)
        again += [Tensor(name="layer input", category="activations", bytes=size)] if together > 1 else []
    if together > 1:
        again = [tensor._replace(bytes=together * tensor.bytes) for tensor in again]
    return tuple(kept), tuple(again), rows
