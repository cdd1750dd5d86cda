"""The picture of `dtsim layout --plot`: products, look-ups and attention of every kind of layer, and what they exchange."""

from __future__ import annotations

from pathlib import Path

from simulator.partition.layout import PARTIAL, Shard
from simulator.partition.operands import Operand
from simulator.report.layout_plot import TensorPicture, plot_layout
from simulator.studies.layout_figures import LayoutFigures, OpFigures
from simulator.units import show
from simulator.workload.graph import Attention, Lookup, Product

__all__ = ["draw_layout"]


def draw_layout(found: LayoutFigures, path: str) -> Path:
    """Draw which part of every tensor a rank has; the ending of the file chooses its format.

    Raises:
        SpecError: an ending that names no picture format.
    """
    rows = [
        (_label(op.label, block.kind, block.count), _tensors(op), _exchanged(op))
        for block in found.blocks
        for op in block.ops
        if isinstance(op.derived.op, Product | Lookup | Attention)
    ]
    mesh = " x ".join(f"{axis} {size}" for axis, size in found.mesh)
    return plot_layout(rows, found.mesh, path, f"{found.model} on {mesh}, layout {found.layout}: who holds what")


def _label(label: str, kind: str, count: int) -> str:
    """The name of an operation, and of which kind of layer."""
    where = f"{kind} x {count}" if count > 1 else "" if kind == label else kind
    return f"{label}\n{where}" if where else label


def _tensors(op: OpFigures) -> list[TensorPicture]:
    parts = op.derived.operands
    given = [o for o in parts if o.role == "input"][:3]
    given += [o for o in parts if o.role == "weight" and o.tensor.role == "weight"][:1]
    made = [o for o in parts if o.role == "output"][:1]
    signs = ["", *["x" if not isinstance(op.derived.op, Attention) else ","] * (len(given) - 1), "="]
    return [_picture(o, sign) for o, sign in zip((*given, *made), signs, strict=True)]


def _picture(o: Operand, sign: str) -> TensorPicture:
    cuts: dict[str, tuple[str, ...]] = {}
    for axis, placement in o.held.items():
        if isinstance(placement, Shard):
            cuts[placement.dim] = (*cuts.get(placement.dim, ()), axis)
    dims = tuple((d.name, d.size) for d in o.tensor.dims)
    sums = tuple(axis for axis, placement in o.used.items() if placement == PARTIAL)
    return TensorPicture(o.tensor.name, dims, {d: on for d, on in cuts.items() if d in dict(dims)}, sums, sign)


def _exchanged(op: OpFigures) -> str:
    lines = [f"{c.direction} {c.kind} over {', '.join(c.axes)}: {show(c.bytes, 'B')}" for c in op.derived.collectives]
    return "\n".join(lines) or "nothing exchanged"
