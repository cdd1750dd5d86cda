"""Kernels of a trace beside those of a prediction, by kind: which kind of work takes longer than it should.

Both are seconds per step of one GPU in which such kernels run, hidden or not; kinds overlap, so they do not add up to the step.  Of a
prediction it is the mean over ranks, a trace is of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.importers.steps import KernelKind
from simulator.report.frames import Records, Tabular
from simulator.report.prediction import Prediction
from simulator.report.table import Section, Table, percent
from simulator.units import show

__all__ = ["KernelsBeside", "kernel_seconds", "kernels_beside"]

_ON_HOST = ("host",)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsBeside(Tabular):
    """Measured beside predicted.

    Args:
        measured: of the trace.
        predicted: seconds per step by kind.
    """

    measured: tuple[KernelKind, ...]
    predicted: dict[str, float]

    def tables(self) -> dict[str, Records]:
        """`kernels`: a row per kind."""
        return {"kernels": self._rows}

    def _rows(self) -> list[dict[str, Any]]:
        known = {one.kind: one for one in self.measured}
        rows = []
        for kind in [*known, *(kind for kind in self.predicted if kind not in known)]:
            one, predicted = known.get(kind), self.predicted.get(kind, 0.0)
            measured = one.seconds if one else 0.0
            rows.append(
                {
                    "kind": kind,
                    "measured_s": measured,
                    "predicted_s": predicted,
                    "error_pct": 100.0 * (predicted / measured - 1.0) if measured and predicted else None,
                    "kernels": one.kernels if one else None,
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
                show(row["measured_s"], "s"),
                show(row["predicted_s"], "s"),
                "" if row["error_pct"] is None else percent(row["error_pct"] / 100.0, signed=True),
                "" if row["kernels"] is None else f"{row['kernels']:,.0f}",
                row["longest_kernel"],
            )
            for row in self._rows()
        )
        return Section(
            title="kernels by kind, seconds per step of a GPU",
            table=Table(headings=("", "measured", "predicted", "error", "kernels", "longest"), rows=rows, left=(0, 5)),
            below=(
                "a measured collective includes waiting for the slowest rank; kinds overlap, so they do not add up to the step",
            ),
        )


def kernels_beside(measured: Sequence[KernelKind], prediction: Prediction) -> KernelsBeside:
    """Return the kernels of a trace beside those of a prediction."""
    return KernelsBeside(measured=tuple(measured), predicted=kernel_seconds(prediction))


def kernel_seconds(prediction: Prediction) -> dict[str, float]:
    """Return seconds per step by kind of kernel, mean over ranks, largest first; what waits for the host is no kernel.

    >>> import simulator
    >>> found = kernel_seconds(simulator.simulate_job(simulator.load_job("gpt2_124m_2gpu")))
    >>> set(found) >= {"gemm", "attention", "memory_bound", "all_reduce"}
    True
    """
    program, prices = prediction.program, prediction.prices
    rank = program.stream_rank[program.streams]
    item = program.item[program.row_of_stream_entry]
    weight = program.rank_weight[rank] / program.rank_weight.sum()
    uses = np.bincount(item, weights=weight, minlength=len(program.items))
    seconds = (uses @ prices.class_share) / (int(program.step.max(initial=0)) + 1)
    out: dict[str, float] = {}
    for name, value in zip(prices.classes, seconds.tolist(), strict=True):
        kind = name.partition(":")[0]
        if kind not in _ON_HOST and value > 0:
            out[kind] = out.get(kind, 0.0) + value
    return dict(sorted(out.items(), key=lambda pair: -pair[1]))
