"""Operations of a trace beside those of a prediction, by kind: which kind of work takes longer, or sends more, than it should.

Both are of one GPU and one step: seconds in which such kernels run, hidden or not, so kinds overlap and do not add up to the step; and
bytes that the GPU brings into collectives (of an all_gather its own piece).  A prediction's are the mean over ranks, a trace is of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.importers.operations import Operation
from simulator.report.frames import Records, Tabular
from simulator.report.kinds import kernel_seconds, message_bytes
from simulator.report.prediction import Prediction
from simulator.report.table import Section, Table, percent
from simulator.units import show

__all__ = ["KernelsBeside", "kernels_beside"]

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
                    "kernels": (one.count or None) if one else None,
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
    predicted = kernel_seconds(prediction.program, prediction.prices)
    if any(one.kind == "compute" for one in measured):
        together = sum(predicted.pop(kind, 0.0) for kind in _COMPUTE)
        predicted = {"compute": together} | predicted
    return KernelsBeside(measured=tuple(measured), predicted=predicted, bytes=message_bytes(prediction.program))
