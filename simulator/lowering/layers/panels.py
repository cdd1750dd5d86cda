"""Products of SUMMA: both operands come in panels, each broadcast by the ranks that own it and multiplied before the next.

Of q ranks of a row each owns one panel of x's columns, of those of a column each one panel of the weight's rows.  q times

    forward            a panel of x along cols, one of w along rows        product, added to what there is
    gradient of x      a panel of w along rows                             product, its sum to the owner along cols
    gradient of w      a panel of x along cols                             product, its sum to the owner along rows

So what moves is what gathering and scattering moves, but only two panels stand at a time, and collectives start q times as often.  Where
collectives run beside products the larger broadcast of the next panel runs beside the product of this one.

Source: van de Geijn and Watts 1997, SUMMA; Xu et al., Optimus, arXiv 2104.05343, algorithms 1 to 3.
"""

from __future__ import annotations

from typing import Any

from simulator.lowering.layers.division import Division, Hop
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.writer import Writer
from simulator.workload.operator import Operator

__all__ = ["in_panels", "input_gradient_panels", "product_panels", "weight_gradient_panels"]


def in_panels(ctx: LayerContext, d: Division) -> bool:
    """Whether a product runs so: the layout says so, and each operand is gathered along one axis of equally many ranks."""
    sides = d.around.gathers, d.around.weights
    if not ctx.layout.panels or any([hop.collective for hop in side] != ["all_gather"] for side in sides):
        return False
    x, w = (side[0] for side in sides)
    return x.ranks == w.ranks and d.shape[3] % x.ranks == 0


def product_panels(w: Writer, d: Division, gathered: float, order: str, narrow: bool) -> int:
    """Write a product; returns its last row.

    Args:
        gathered: bytes of x.
    """
    (b, m, _, k), x, y = d.shape, d.around.gathers[0], d.around.weights[0]
    row = -1
    for i in range(x.ranks):
        label, one = f"{w.o.label} panel {i}", gathered / x.ways / x.ranks
        each = [_panel(w.o, gathered, j) / y.ways / y.ranks for j in range(len(d.widths))]
        first = one >= sum(each)
        _send(w, x, "broadcast", one, label, beside=row if first else -1)
        for j, width in enumerate(d.widths):
            hidden = row if j == 0 and not first else -1
            _send(w, y, "broadcast", each[j], f"{label} weight", beside=hidden)
            row = w.product(label, (b, m, width, k // x.ranks), order, narrow=narrow)
    return row


def input_gradient_panels(w: Writer, d: Division, gathered: float, narrow: bool) -> None:
    """Write the gradient of x; arguments as of `product_panels`."""
    o = w.o
    (b, m, _, k), x, y = d.shape, d.around.gathers[0], d.around.weights[0]
    row = -1
    for i in range(x.ranks):
        label = f"{o.label} input gradient panel {i}"
        for j, width in enumerate(d.widths):
            size = _panel(o, gathered, j) / y.ways / y.ranks
            _send(w, y, "broadcast", size, f"{label} weight", beside=row)
            shape = (b, m, k // x.ranks, width)
            row = w.product(label, shape, "NN", narrow=narrow)
        _send(w, x, "reduce", o.shape[1] * o.shape[3] * w.ctx.e / x.ways / x.ranks, label)


def weight_gradient_panels(w: Writer, d: Division, gathered: float, narrow: bool) -> None:
    """Write the gradients of the weights; arguments as of `product_panels`."""
    o = w.o
    (b, m, _, k), x, y = d.shape, d.around.gathers[0], d.around.weights[0]
    row = -1
    for i in range(x.ranks):
        label = f"{o.label} weight gradient panel {i}"
        _send(w, x, "broadcast", gathered / x.ways / x.ranks, label, beside=row, part="weight")
        for j, width in enumerate(d.widths):
            shape = (b, width, k // x.ranks, m)
            row = w.product(label, shape, "NT", part="weight", narrow=narrow)
            size = o.shape[3] * o.widths[j] * w.ctx.e / y.ways / y.ranks
            _send(w, y, "reduce", size, label, part="weight")


def _panel(o: Operator, gathered: float, place: int) -> float:
    """Bytes of a whole weight, as wide as x is gathered."""
    return gathered / o.shape[1] * o.widths[place]


def _send(w: Writer, hop: Hop, name: str, size: float, label: str, **more: Any) -> None:
    w.collective(label, name, size, axes=(hop.axis,), **more)
