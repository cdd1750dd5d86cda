"""One row's prediction, or why there is none: what every quantity of a row is judged by."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.report.prediction import Prediction
from simulator.studies.validation.placement import place, predict
from simulator.studies.validation.rows import CannotPlace, Row, text
from simulator.studies.validation.scores import OUT_OF_MEMORY, Outcome

__all__ = ["Attempt", "attempt", "verdict_outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of predicting a row.

    Args:
        prediction: None if there is none.
        reason: why there is none.
        counts: whether its absence counts as an error.
        assumed: rules that filled in what the row leaves out.
        kind: kind of run.
    """

    prediction: Prediction | None = None
    reason: str = ""
    counts: bool = True
    assumed: tuple[str, ...] = ()
    kind: str = ""


def attempt(row: Row, everything: bool) -> Attempt:
    """Predict a row; one of quality C only if `everything`."""
    assumed: tuple[str, ...] = ()
    kind = ""
    try:
        if text(row, "quality").upper() == "C" and not everything:
            raise CannotPlace("quality C: its inputs are incomplete (--all predicts it)", counts=False)
        placed = place(row)
        kind, assumed = placed.kind, placed.assumed
        prediction, assumed = predict(placed)
    except CannotPlace as why:
        return Attempt(reason=why.reason, counts=why.counts, assumed=assumed, kind=kind)
    return Attempt(prediction=prediction, assumed=assumed, kind=kind)


def verdict_outcome(case: str, group: str, verdict: bool, tried: Attempt) -> Outcome:
    """Return the outcome of a row that says whether the run went out of memory."""
    return Outcome(
        case_id=case,
        quantity=OUT_OF_MEMORY,
        group=group,
        measured=float(verdict),
        predicted=None if tried.prediction is None else float(not tried.prediction.fits),
        reason=tried.reason,
        counts=tried.counts,
        assumed=tried.assumed,
        kind=tried.kind,
    )
