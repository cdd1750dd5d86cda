"""Measured training runs: step time and the verdict on memory of each row (columns of training_runs.csv)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.accuracy.attempt import attempt, group_of, how_predicted, sweep_of, verdict_outcome
from simulator.accuracy.scores import Outcome
from simulator.importers.table.rows import CannotPlace, Row, flag, number, text

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
    tried = attempt(row, everything)
    prediction = tried.prediction
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
                reason=tried.reason or ("" if measured is not None else "no step time was measured"),
                counts=tried.counts and measured is not None,
                assumed=tried.assumed,
                sweep=sweep_of(row),
                kind=tried.kind,
                **how_predicted(prediction),
                terms=terms,
            )
        )
    if verdict is not None:
        out.append(verdict_outcome(case, group, verdict, tried))
    return out
