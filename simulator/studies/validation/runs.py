"""Measured training runs: step time and the verdict on memory of each row (columns of training_runs.csv)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.report.prediction import Prediction
from simulator.studies.validation.placement import group_of, place, predict, sweep_of
from simulator.studies.validation.rows import CannotPlace, Row, flag, number, text
from simulator.studies.validation.scores import OUT_OF_MEMORY, Outcome

__all__ = ["run_outcomes"]


def run_outcomes(rows: Sequence[Row], everything: bool = False) -> Iterator[list[Outcome]]:
    """Yield the outcomes of each row: step_time_s, and out_of_memory where the table has a verdict.

    Args:
        everything: also rows of quality C, whose inputs are incomplete.
    """
    for i, row in enumerate(rows, 1):
        yield _outcomes(row, text(row, "case_id") or f"row-{i:04d}", everything)


def _outcomes(row: Row, case: str, everything: bool) -> list[Outcome]:
    group = group_of(row)
    try:
        measured, verdict = number(row, "step_time_s"), flag(row, "oom")
    except CannotPlace as why:
        return [
            Outcome(case_id=case, quantity="step_time_s", group=group, measured=None, reason=why.reason, counts=False)
        ]
    if measured is not None and measured <= 0:
        measured = None
    prediction: Prediction | None = None
    assumed: tuple[str, ...] = ()
    reason, counts, kind = "", True, ""
    try:
        if text(row, "quality").upper() == "C" and not everything:
            raise CannotPlace("quality C: its inputs are incomplete (--all predicts it)", counts=False)
        placed = place(row)
        kind, assumed = placed.kind, placed.assumed
        prediction, assumed = predict(placed)
    except CannotPlace as why:
        reason, counts = why.reason, why.counts
    out = []
    if not verdict:
        terms = tuple(prediction.breakdown.items()) if prediction else ()
        out.append(
            Outcome(
                case_id=case,
                quantity="step_time_s",
                group=group,
                measured=measured,
                predicted=prediction.step_time if prediction else None,
                low=prediction.low if prediction else None,
                high=prediction.high if prediction else None,
                reason=reason or ("" if measured is not None else "no step time was measured"),
                counts=counts and measured is not None,
                assumed=assumed,
                sweep=sweep_of(row),
                kind=kind,
                terms=terms,
            )
        )
    if verdict is not None:
        out.append(
            Outcome(
                case_id=case,
                quantity=OUT_OF_MEMORY,
                group=group,
                measured=float(verdict),
                predicted=None if prediction is None else float(not prediction.fits),
                reason=reason,
                counts=counts,
                assumed=assumed,
                kind=kind,
            )
        )
    return out
