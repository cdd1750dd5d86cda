"""One row's prediction, or why there is none: what every quantity of a row is judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from simulator.accuracy.scores import OUT_OF_MEMORY, Outcome
from simulator.errors import SimulatorError
from simulator.importers.table.row_simulation import RowSimulation, row_simulations
from simulator.importers.table.rows import CannotPlace, Row, text
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.report.prediction import Prediction
from simulator.simulation import simulate

__all__ = ["Attempt", "attempt", "group_of", "how_predicted", "may_fit", "predict", "sweep_of", "verdict_outcome"]


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
        placements = row_simulations(row)
        kind, assumed = placements[0].kind, placements[0].assumed
        placed, prediction, assumed = _likely(placements)
    except CannotPlace as why:
        return Attempt(reason=why.reason, counts=why.counts, assumed=assumed, kind=kind)
    return Attempt(
        prediction=replace(prediction, unknown=placed.unknown),
        assumed=assumed,
        kind=kind,
        offloads=placed.offloads,
        guessed=placed.recompute is None,
    )


NEAR_QUICKEST = 0.1
"""How much slower than the quickest a run with a smaller microbatch may be that is taken for it."""


def _likely(placements: tuple[RowSimulation, ...]) -> tuple[RowSimulation, Prediction, tuple[str, ...]]:
    """Return the simulation of a row, its prediction and what was assumed: of several that differ in sizes which the row leaves open, the
    quickest that may fit, with the least microbatch of those that are about as quick.

    Who prints no size has tried some.  Of 653 runs of 283 sources that print a microbatch, predicted as if they did not, this rule errs by
    12.3 % over sources (told: 11.3), a microbatch of 1 by 18.0; of 159 of 56 that print chunks, 6.4 (told: 6.0), two chunks by 7.8.

    Raises:
        CannotPlace: the simulator refuses all; the reason is its message.
    """
    found, refused = [], None
    for placed in placements:
        try:
            found.append((placed, *predict(placed)))
        except CannotPlace as why:
            refused = refused or why
    if not found:
        raise refused or CannotPlace("nothing was simulated")
    some = [one for one in found if may_fit(one[1])] or found[:1]
    most = min(one[1].step_time for one in some) * (1.0 + NEAR_QUICKEST)
    near = [one for one in some if one[1].step_time <= most]
    return min(near, key=lambda one: (one[0].fields["microbatch_size"], one[1].step_time))


def how_predicted(prediction: Prediction | None) -> dict[str, Any]:
    """Return the fields of an outcome that tell with what it was predicted; {} where it was not."""
    if prediction is None:
        return {}
    return {
        "unknown": tuple(sorted(prediction.unknown)),
        "priced": math.hypot(*prediction.sigma_classes.values()),
        "code": str(prediction.made.get("framework", "")),
        "gpu": prediction.cluster.machine,
    }


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


def predict(placed: RowSimulation) -> tuple[Prediction, tuple[str, ...]]:
    """Return (prediction, all that was assumed); of an unknown recompute the least that may fit.

    Raises:
        CannotPlace: the simulator refuses the plan; the reason is its message.
    """
    by_operator = load_framework(placed.fields["framework"]).recompute == "operators"
    middle = "operators" if by_operator else "selective"
    choices = (placed.recompute,) if placed.recompute else ("none", middle, "full")
    prediction, assumed = None, placed.assumed
    for choice in choices:
        try:
            plan = Plan(**{**placed.fields, "recompute": None if choice == "policy" else choice})
            prediction = simulate(placed.workload, plan, placed.cluster)
        except SimulatorError as error:
            raise CannotPlace(str(error)) from None
        if may_fit(prediction):
            break
    if placed.recompute is None:
        assumed += (f"recompute = {choice} (the least that may fit)",)
    if prediction is None:
        raise CannotPlace("nothing was simulated")
    return prediction, assumed


MAY_EXCEED = 0.06
"""How much more than its GPU a run may be predicted to need that did run: four of five peaks of looked-up codes err by less [1]."""


def may_fit(prediction: Prediction) -> bool:
    """Whether the memory may suffice: the run did run, so a peak that is a little too large does not tell against it."""
    room = float(prediction.capacities[prediction.fullest]) * (1.0 + MAY_EXCEED)
    return prediction.peak_memory <= room and not any(tier.over for tier in prediction.tiers)


def group_of(row: Row) -> str:
    """Return the group of a row: its source, else the letters that its case_id begins with."""
    return text(row, "source") or text(row, "case_id").split("-")[0] or "all rows"


def sweep_of(row: Row) -> str:
    """Return what rows of one sweep share: source, GPU, model, number of GPUs and sequence length."""
    return " | ".join((group_of(row), *(text(row, c) for c in ("gpu", "model", "n_gpus", "seq_len"))))
