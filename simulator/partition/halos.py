"""Rows at the borders of a divided dimension, which neighbours send each other for operations that read windows.

Of a window of k rows with stride s, k - s rows cross between two neighbours, some forwards and some backwards; their gradients go the
other way.  Where two dimensions are divided, the second one's rows are as long as the first one's halo has made them: corners come along.
Source: Xu et al., GSPMD, arXiv 2105.04663 (halo exchange).  Mesh-TensorFlow has none (arXiv 1811.02084).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.errors import LayoutError
from simulator.partition.layout import Shard
from simulator.partition.operands import Operand
from simulator.partition.placements import LaidOut
from simulator.workload.graph import Op
from simulator.workload.windows import Windowed

__all__ = ["Halo", "halos_of"]


@dataclass(frozen=True, slots=True)
class Halo:
    """Rows that ranks get from their neighbours along a dimension.

    Args:
        tensor: whose; `dim`: of it.
        axes: that divide the dimension, in the order in which they cut it.
        before, after: rows from the neighbour before, and from the one behind.
        bytes: that a rank between two others sends, and of two ranks the one that sends more [B].
        ranks: in a row.
    """

    tensor: str
    dim: str
    axes: tuple[str, ...]
    before: int
    after: int
    bytes: float
    ranks: int


def halos_of(op: Op, operands: tuple[Operand, ...], laid: LaidOut, allowed: bool = True) -> Iterator[Halo]:
    """Yield the halos of an operation, in the order in which they are exchanged.

    Args:
        operands: from `operands_of`, its input first.
        allowed: whether there may be any.

    Raises:
        LayoutError: there may be none, or a neighbour has fewer rows than are needed; tensor, dimension and axis are named.
    """
    if not isinstance(op, Windowed):
        return
    x = operands[0]
    rows = {d.name: d.size for d in x.used_shape}
    for window in op.windows:
        axes = tuple(axis for axis, p in x.used.items() if p == Shard(window.dim))
        most = max(window.before, window.after)
        if not axes or not most:
            continue
        where = f"{window.dim} of {x.tensor.name!r} on mesh axis {', '.join(map(repr, axes))}"
        ranks = math.prod(laid.ranks[axis] for axis in axes)
        if not allowed:
            raise LayoutError(
                f"Mesh-TensorFlow's rules know no halos, but layout {laid.name!r} divides {where}, and {op.label!r} reads windows of "
                f"{window.size} rows. Nearest: {window.dim} whole, or a layout with halos"
            )
        if most > rows[window.dim]:
            size = rows[window.dim] * ranks
            near = next(n for n in range(ranks, 0, -1) if size % n == 0 and (n == 1 or size // n >= most))
            raise LayoutError(
                f"a halo comes from the next rank, but layout {laid.name!r} leaves {rows[window.dim]} rows of {where} and {op.label!r} "
                f"needs {most} of a neighbour. Nearest: {near} ranks"
            )
        sent = window.before + window.after if ranks > 2 else most
        across = math.prod(size for name, size in rows.items() if name != window.dim)
        size_b = sent * across * x.tensor.element
        yield Halo(x.tensor.name, window.dim, axes, window.before, window.after, size_b, ranks)
        rows[window.dim] += window.before + window.after
