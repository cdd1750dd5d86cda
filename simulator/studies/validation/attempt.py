"""One row's prediction, or why there is none: what every quantity of a row is judged by."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.report.prediction import Prediction
from simulator.studies.validation.placement import may_fit, place, predict
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
        offloads: whether the run may move activations to the host, unseen here.
        guessed: whether what it recomputes was guessed, as the least that may fit.
    """

    prediction: Prediction | None = None
    reason: str = ""
    counts: bool = True
    assumed: tuple[str, ...] = ()
    kind: str = ""
    offloads: bool = False
    guessed: bool = False


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
    guessed = placed.recompute is None
    return Attempt(prediction=prediction, assumed=assumed, kind=kind, offloads=placed.offloads, guessed=guessed)


def verdict_outcome(case: str, group: str, verdict: bool, tried: Attempt) -> Outcome:
    """Return the outcome of a row that says whether the run went out of memory."""
    full = tried.prediction is not None and not tried.prediction.fits
    unseen = ""
    if full and tried.offloads:
        unseen = "more than fits, and the run may have moved activations to the host"
    elif full and tried.guessed and tried.prediction is not None and may_fit(tried.prediction):
        unseen = "more than fits by less than the band of memory, and what the run recomputed is not known"
    return Outcome(
        case_id=case,
        quantity=OUT_OF_MEMORY,
        group=group,
        measured=float(verdict),
        predicted=None if tried.prediction is None or unseen else float(full),
        reason=tried.reason or unseen,
        counts=tried.counts and not unseen,
        assumed=tried.assumed,
        kind=tried.kind,
    )
