"""Outputs that one rank gathers from all, to compute the loss of all of them: torch's DataParallel.

    others      ... products of the head | send        waits      receive | backward of these products ...
    rank 0      ... products of the head | gather   loss of all   scatter | backward of these products ...

What is sent is what the loss reads: the results of the last product in front of it, in their own format.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import starmap

from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.layers.rows import Row, Rows
from simulator.program.calls import Traffic
from simulator.program.program import OperatorTable, Tensor
from simulator.units import BYTES_PER_ELEMENT

__all__ = ["on_one_rank"]

_LOSS = Traffic("loss")


@functools.lru_cache(maxsize=256)
def on_one_rank(cost: LayerCost, ranks: int, group: tuple[str, ...]) -> LayerCost:
    """Return what a layer costs the rank that computes the loss of all; one without a loss as it is.

    Args:
        ranks: how many have outputs, this one among them; `group`: their mesh axes.
    """
    if not any(call == _LOSS for call in cost.forward.call):
        return cost
    ways = {"forward": "gather", "backward": "scatter", "input_gradient": "scatter"}
    tables = {
        name: functools.partial(_table, make, ways.get(name, ""), ranks, group) for name, make in cost.tables.items()
    }
    return replace(
        cost,
        tables=tables,
        saved=tuple([_times(t, ranks) if t.category == "logits" else t for t in cost.saved]),
        forward_mark=tuple([_times(t, ranks) for t in cost.forward_mark]),
        backward_mark=tuple([_times(t, ranks) for t in cost.backward_mark]),
    )


def _times(tensor: Tensor, ranks: int) -> Tensor:
    return tensor._replace(bytes=tensor.bytes * ranks)


def _table(make: Callable[[], OperatorTable], collective: str, ranks: int, group: tuple[str, ...]) -> OperatorTable:
    """A table whose kernels of the loss work on all ranks' outputs, gathered before them or scattered behind them."""
    table = make()
    rows = list(starmap(Row, zip(*[getattr(table, name) for name in Row._fields], strict=True)))
    loss = [i for i, row in enumerate(rows) if row.call == _LOSS]
    if not loss or not collective:
        return table
    for i in loss:
        row = rows[i]
        rows[i] = row._replace(flops=row.flops * ranks, read=row.read * ranks, written=row.written * ranks)
    out = Rows(table.name)
    out.rows = rows
    at = loss[0] if collective == "gather" else loss[-1] + 1
    out.sends(
        "outputs",
        collective,
        ranks * _output(table, loss),
        group,
        table.dtype[at - 1 if collective == "gather" else at],
        table.phase[loss[0]],
        part=table.part[loss[0]],
    )
    out.rows.insert(at, out.rows.pop())
    return out.table()


def _output(table: OperatorTable, loss: list[int]) -> float:
    """Bytes of what one rank's loss reads: forward the result of the last product before it, backward what the first behind it reads.

    Args:
        loss: rows of its kernels.
    """
    before = [i for i in range(loss[0]) if table.work[i] == "gemm"]
    if before:
        batch, m, n, _ = table.shape[before[-1]].tolist()
        return float(batch * m * n * BYTES_PER_ELEMENT[table.dtype[before[-1]]])
    behind = next(i for i in range(loss[-1] + 1, len(table)) if table.work[i] == "gemm")
    batch, m, _, k = table.shape[behind].tolist()
    return float(batch * m * k * BYTES_PER_ELEMENT[table.dtype[behind]])
