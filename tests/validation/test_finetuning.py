"""Runs of fine-tuning, all weights and low-rank adapters: as first predicted, and today."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import pytest

from simulator.accuracy.runs import run_outcomes
from simulator.accuracy.scores import Outcome

DATA = Path(__file__).parents[1] / "data"


def rows(name: str) -> list[dict[str, str]]:
    lines = (DATA / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def medians(errors: dict[str, tuple[str, float]]) -> tuple[float, float]:
    """Median error over rows, and over sources of their medians."""
    sources = {source for source, _ in errors.values()}
    each = [median(abs(e) for s, e in errors.values() if s == source) for source in sources]
    return median(abs(e) for _, e in errors.values()), median(each)


def test_first_predictions_err_as_the_documents_state() -> None:
    kept = [r for r in rows("finetuning_runs_first") if r["quantity"] == "step_time_s"]
    errors = {r["case_id"]: (r["group"], float(r["predicted"]) / float(r["measured"]) - 1.0) for r in kept}
    assert {r["case_id"] for r in rows("finetuning_runs")} == set(errors)
    assert (0.131, 0.142) == tuple(round(x, 3) for x in medians(errors))
    inside = [float(r["low"]) <= float(r["measured"]) <= float(r["high"]) for r in kept]
    assert round(sum(inside) / len(inside), 2) == 0.49


@pytest.mark.slow
def test_today_they_err_as_the_documents_state() -> None:
    every = run_outcomes(rows("finetuning_runs"), everything=True)
    found: list[Outcome] = [o for some in every for o in some if o.quantity == "step_time_s"]
    errors = {o.case_id: (o.group, o.predicted / o.measured - 1.0) for o in found if o.predicted and o.measured}
    assert len(errors) == 47
    over_rows, over_sources = medians(errors)
    assert over_rows <= 0.066
    assert over_sources <= 0.035
