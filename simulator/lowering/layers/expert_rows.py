"""Rows of what goes between the ranks that share experts: tokens, the router's weights, and how many rows each expert has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.lowering.layers.rows import Rows
from simulator.program.calls import AWAITED, Call, NodeExchange
from simulator.program.program import COLLECTIVE
from simulator.workload.operator import Operator

if TYPE_CHECKING:
    from simulator.lowering.layers.splitter import Splitter

__all__ = ["swap_rows", "wait_for"]

_WEIGHT = 4.0
"""Bytes of a router's weight, fp32."""
_COUNT = 8.0
"""Bytes of a number of rows, int64."""


def swap_rows(split: Splitter, rows: Rows, o: Operator, phase: str, outward: bool) -> None:
    """Rows of tokens to the ranks of their experts (`outward`) or back; their weights too, where experts apply these.

    Between expert-parallel ranks an all_to_all; where tensor parallelism splits experts, all of its ranks need all rows:
    gathered outward, partial results summed back.  Without an all_to_all tokens go before they are copied.
    """
    x = split.experts
    if x.parallel > 1 and not outward:
        _between_splits(split, rows, o, phase, outward, o.read * x.imbalance)
    if x.parallel > 1:
        call = NodeExchange(o.copies, o.reach) if x.exchange == "once_per_node" else None
        _all_to_all(split, rows, o.label, o.read, phase, call)
    if x.parallel > 1 and o.work == "dispatch" and x.exchange == "all_to_all" and split.style.weights_in_experts:
        _all_to_all(split, rows, f"{o.label} weights", _WEIGHT * split.tokens * o.copies, phase)
    if x.parallel == 1:
        _between_splits(split, rows, o, phase, outward, split.x)
    elif outward:
        _between_splits(split, rows, o, phase, outward, o.read * x.imbalance)


def _all_to_all(split: Splitter, rows: Rows, label: str, size: float, phase: str, call: Call = None) -> None:
    rows.add(
        label=f"{label} all_to_all",
        kind=COLLECTIVE,
        work="all_to_all",
        call=call,
        message=size / split.factor("sequence") * split.experts.imbalance,
        group=split.groups.expert,
        dtype=split.dtype,
        phase=phase,
    )


def _between_splits(split: Splitter, rows: Rows, o: Operator, phase: str, outward: bool, message: float) -> None:
    """The collective between ranks that split experts; nothing where experts are whole."""
    if split.experts.tensor == 1:
        return
    if outward and split.sp:
        split.collective(rows, "all_gather", message, phase, o.label)
    elif not outward:
        split.collective(rows, split.summed(), message, phase, o.label)


def wait_for(split: Splitter, rows: Rows, o: Operator, phase: str) -> None:
    """What the host waits for; of rows per expert it is first told to all ranks that share experts."""
    x = split.experts
    if x.parallel > 1 and o.work == "counts":
        rows.add(
            label=f"{o.label} all_gather",
            kind=COLLECTIVE,
            work="all_gather",
            message=_COUNT * x.parallel * x.count,
            group=split.groups.expert,
            dtype=split.dtype,
            phase=phase,
        )
    rows.add(
        label=o.label,
        work="memory_bound",
        call=AWAITED,
        dtype=split.dtype,
        read=o.read / split.factor("sequence"),
        phase=phase,
        launches=o.launches,
    )
