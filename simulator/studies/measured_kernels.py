"""Operations of a trace beside those of a prediction, by kind: which kind of work takes longer, or sends more, than it should.

Both are of one GPU and one step: seconds in which such kernels run, hidden or not, so kinds overlap and do not add up to the step; and
bytes that the GPU brings into collectives (of an all_gather its own piece).  A prediction's are the mean over ranks, a trace is of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.costs.price import HOST_CLASS
from simulator.importers.operations import Operation
from simulator.program.program import COLLECTIVE, TRANSFER, Link
from simulator.report.frames import Records, Tabular
from simulator.report.prediction import Prediction
from simulator.report.table import Section, Table, percent
from simulator.units import show

__all__ = ["KernelsBeside", "kernel_seconds", "kernels_beside", "message_bytes"]

_COMPUTE = ("gemm", "attention", "memory_bound", "optimizer")
"""What a trace calls `compute` that does not tell kernels apart."""
_LOCAL = ("compute", *_COMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsBeside(Tabular):
    """Measured beside predicted.

    Args:
        measured: of the trace, by kind.
        predicted: seconds per step by kind.
        bytes: predicted bytes per step that a GPU brings into collectives and messages, by kind.
    """

    measured: tuple[Operation, ...]
    predicted: dict[str, float]
    bytes: dict[str, float]

    def tables(self) -> dict[str, Records]:
        """`kernels`: a row per kind."""
        return {"kernels": self._rows}

    def _rows(self) -> list[dict[str, Any]]:
        known = {one.kind: one for one in self.measured}
        rows = []
        for kind in [*known, *(kind for kind in self.predicted if kind not in known)]:
            one, predicted = known.get(kind), self.predicted.get(kind, 0.0)
            measured = (one.seconds or None) if one else 0.0
            rows.append(
                {
                    "kind": kind,
                    "measured_s": measured,
                    "predicted_s": predicted,
                    "error_pct": 100.0 * (predicted / measured - 1.0) if measured and predicted else None,
                    "measured_bytes": (one.bytes or None) if one and kind not in _LOCAL else None,
                    "predicted_bytes": self.bytes.get(kind),
                    "kernels": one.count if one else None,
                    "longest_kernel": one.longest if one else "",
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the key `kernels` of `measured` of `dtsim run --json`."""
        return {"by_kind": self._rows()}

    def section(self) -> Section:
        """Return them to read."""
        rows = tuple(
            (
                str(row["kind"]),
                "" if row["measured_s"] is None else show(row["measured_s"], "s"),
                show(row["predicted_s"], "s"),
                "" if row["error_pct"] is None else percent(row["error_pct"] / 100.0, signed=True),
                "" if row["measured_bytes"] is None else show(row["measured_bytes"], "B"),
                "" if row["predicted_bytes"] is None else show(row["predicted_bytes"], "B"),
                "" if row["kernels"] is None else f"{row['kernels']:,.0f}",
                row["longest_kernel"],
            )
            for row in self._rows()
        )
        headings = ("", "measured", "predicted", "error", "bytes measured", "predicted", "kernels", "longest")
        return Section(
            title="kernels by kind, per step of a GPU",
            table=Table(headings=headings, rows=rows, left=(0, 7)),
            below=(
                "a measured collective includes waiting for the slowest rank; kinds overlap, so they do not add up to the step",
                "bytes are what the GPU brings into collectives and messages; empty where the trace does not say",
            ),
        )


def kernels_beside(measured: Sequence[Operation], prediction: Prediction) -> KernelsBeside:
    """Return the operations of a trace, by kind, beside those of a prediction."""
    predicted = kernel_seconds(prediction)
    if any(one.kind == "compute" for one in measured):
        together = sum(predicted.pop(kind, 0.0) for kind in _COMPUTE)
        predicted = {"compute": together} | predicted
    return KernelsBeside(measured=tuple(measured), predicted=predicted, bytes=message_bytes(prediction))


def _uses(prediction: Prediction) -> np.ndarray:
    """How often each item runs in a step on a GPU, mean over ranks."""
    program = prediction.program
    rank = program.stream_rank[program.streams]
    item = program.item[program.row_of_stream_entry]
    weight = program.rank_weight[rank] / program.rank_weight.sum()
    uses = np.bincount(item, weights=weight, minlength=len(program.items))
    return uses / (int(program.step.max(initial=0)) + 1)


def kernel_seconds(prediction: Prediction) -> dict[str, float]:
    """Return seconds per step by kind of kernel, mean over ranks, largest first; what waits for the host is no kernel.

    >>> import simulator
    >>> found = kernel_seconds(simulator.simulate_job(simulator.load_job("gpt2_124m_2gpu")))
    >>> set(found) >= {"gemm", "attention", "memory_bound", "all_reduce"}
    True
    """
    prices = prediction.prices
    seconds = _uses(prediction) @ prices.class_share
    out: dict[str, float] = {}
    for which, value in zip(prices.classes, seconds.tolist(), strict=True):
        if which != HOST_CLASS and value > 0:
            out[which.kind] = out.get(which.kind, 0.0) + value
    return dict(sorted(out.items(), key=lambda pair: -pair[1]))


def message_bytes(prediction: Prediction) -> dict[str, float]:
    """Return bytes per step that a GPU brings into collectives and messages, by kind, mean over ranks.

    Of an all_gather its own piece, of others its whole buffer, as Chakra's traces and PyTorch's profiler count; a message counts at
    both of its ends.

    >>> import simulator
    >>> found = message_bytes(simulator.simulate_job(simulator.load_job("gpt2_124m_2gpu")))
    >>> list(found), found["all_reduce"] > 2e8
    (['all_reduce'], True)
    """
    out: dict[str, float] = {}
    program = prediction.program
    for number, (item, uses) in enumerate(zip(program.items, _uses(prediction).tolist(), strict=True)):
        sizes = dict(program.mesh_of(int(program.item_rank[number])))
        for kind, message, group, members in _messages(item):
            brought = (
                message / (members or int(np.prod([sizes[axis] for axis in group])))
                if kind == "all_gather"
                else message
            )
            if uses and brought:
                out[kind] = out.get(kind, 0.0) + uses * brought
    return dict(sorted(out.items(), key=lambda pair: -pair[1]))


def _messages(item: Any) -> Iterator[tuple[str, float, tuple[str, ...], int]]:
    """Yield kind, bytes, mesh axes, and how many take part where it is not all on these axes, of what an item sends."""
    if isinstance(item, Link):
        if item.kind == TRANSFER:
            yield "send_recv", item.message, (), 0
        elif item.kind == COLLECTIVE:
            yield item.collective, item.message, item.group, len(item.pipeline_ranks) if "pp" in item.group else 0
        return
    for table, count in item.pieces:
        for i in np.flatnonzero(table.kind == COLLECTIVE).tolist():
            ends = 2 if table.work[i] == "send_recv" else 1
            yield table.work[i], float(table.message[i]) * count * ends, table.group[i], 0
