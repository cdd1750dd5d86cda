"""Measured runs and tables against predictions, as `dtsim validate` shows them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.accuracy.published import published_jobs, published_outcomes
from simulator.accuracy.scores import score
from tests.command import Dtsim

DATA = Path(__file__).parents[1] / "data"


def answer(dtsim: Dtsim, *arguments: str) -> dict[str, Any]:
    code, out, err = dtsim("validate", *arguments, "--json")
    assert 0 == code, err
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"JSON has no {word}"))


def refusal(dtsim: Dtsim, *arguments: str) -> str:
    code, _, err = dtsim("validate", *arguments)
    assert 2 == code
    return err


def test_the_runs_of_korthikanti_are_predicted_within_five_percent() -> None:
    outcomes = [o for some in published_outcomes() for o in some if o.case_id.startswith("korthikanti")]
    scores = score(outcomes)
    assert (9, 9) == (scores.n, scores.n_predicted)
    assert (scores.mape or 1) <= 0.05
    assert (scores.max_ape or 1) <= 0.10


def test_a_shipped_run_is_a_whole_job() -> None:
    job = dict(published_jobs("korthikanti_table5"))["530B selective 8 replicas"]
    assert (2240, 39.15, "selective") == (job.cluster.world_size, job.measured_step_time, job.plan.recompute)


def test_published_schedules_are_met_exactly(dtsim: Dtsim) -> None:
    found = answer(dtsim, str(DATA / "schedule_goldens.csv"))
    assert "schedules" == found["kind"]
    assert found["summary"]["n"] == found["summary"]["n_predicted"] > 1000
    assert found["summary"]["max_ape"] <= 1e-5
    assert [] == [row for row in found["rows"] if abs(row["predicted"] - row["measured"]) > 1e-8]


def test_lists_have_one_row_per_rank(dtsim: Dtsim) -> None:
    found = answer(dtsim, str(DATA / "schedule_goldens.csv"))
    peaks = [
        r for r in found["rows"] if r["case_id"] == "schedules-0001" and r["quantity"] == "peak_activations_per_device"
    ]
    assert list(range(len(peaks))) == [row["rank"] for row in peaks]


@pytest.mark.slow
def test_the_answer_has_the_promised_shape(dtsim: Dtsim) -> None:
    found = answer(dtsim)
    row = {"case_id", "quantity", "group", "measured", "predicted", "low", "high", "error_pct", "reason"}
    scores = {
        "n", "n_predicted", "mape", "median_ape", "p90_ape", "max_ape", "bias", "spearman", "band_coverage",
        "band_width", "median_over_groups", "out_of_memory", "in_sample",
    }  # fmt: skip
    assert row <= set(found["rows"][0])
    assert scores <= set(found["summary"])
    assert all(scores <= set(group) for group in found["by_group"].values())
    assert {"tp", "fp", "fn", "tn", "precision", "recall"} == set(found["summary"]["out_of_memory"])
    assert {"version", "calibration", "engine"} <= set(found["provenance"])


def table(path: Path, **changes: str) -> Path:
    """Write the four runs of tests/data/measured_runs.csv, with changes to all of them."""
    lines = [line for line in (DATA / "measured_runs.csv").read_text().splitlines() if not line.startswith("#")]
    rows = [{**row, **changes} for row in csv.DictReader(lines)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_runs_give_times_and_verdicts(dtsim: Dtsim, tmp_path: Path) -> None:
    found = answer(dtsim, str(table(tmp_path / "runs.csv")))
    times = [row for row in found["rows"] if row["quantity"] == "step_time_s"]
    assert 3 == len(times)
    assert all(abs(row["error_pct"]) < 10 for row in times)
    assert (1, 3) == tuple(found["summary"]["out_of_memory"][key] for key in ("tp", "tn"))


def test_leaving_a_source_out_changes_only_the_bands(dtsim: Dtsim, tmp_path: Path) -> None:
    path = str(table(tmp_path / "runs.csv"))
    with_all, without = answer(dtsim, path), answer(dtsim, path, "--leave-one-out")
    assert without["provenance"]["leave_one_out"]
    assert [row["predicted"] for row in with_all["rows"]] == [row["predicted"] for row in without["rows"]]
    bands = [[(row["low"], row["high"]) for row in found["rows"]] for found in (with_all, without)]
    assert bands[0] != bands[1]


def test_rows_go_to_a_csv_with_their_breakdown(dtsim: Dtsim, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    answer(dtsim, str(table(tmp_path / "runs.csv")), "--output", str(out))
    row = next(r for r in csv.DictReader(out.read_text().splitlines()) if r["quantity"] == "step_time_s")
    parts = [float(value) for name, value in row.items() if name.endswith("_s") and value]
    assert pytest.approx(float(row["predicted"])) == sum(parts)


def test_the_screen_shows_errors_reasons_and_rules(dtsim: Dtsim, tmp_path: Path) -> None:
    _, shown, _ = dtsim("validate", str(table(tmp_path / "runs.csv", precision="int2")))
    assert "precision 'int2' is not modelled" in shown
    assert "100 %" in shown


def test_rows_of_low_quality_are_predicted_when_asked_for(dtsim: Dtsim, tmp_path: Path) -> None:
    path = str(table(tmp_path / "runs.csv", quality="C"))
    assert 0 == answer(dtsim, path)["summary"]["n"]
    assert 3 == answer(dtsim, path, "--all")["summary"]["n_predicted"]


def test_a_table_of_no_known_kind_is_refused(dtsim: Dtsim, tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    assert "do not tell what kind" in refusal(dtsim, str(tmp_path / "odd.csv"))
    (tmp_path / "near.csv").write_text("model,n_gpus,step_time_ms\nllama3_8b,8,1020\n")
    assert "Nearest: 'step_time_ms' for step_time_s" in refusal(dtsim, str(tmp_path / "near.csv"))
    assert "cannot be read" in refusal(dtsim, str(tmp_path / "none.csv"))
    assert "no kind of table" in refusal(dtsim, "--kind", "planets")
    assert "needs a FILE" in refusal(dtsim, "--kind", "nccl")


def test_products_and_collectives_are_validated_too(dtsim: Dtsim) -> None:
    products = answer(dtsim, str(DATA / "gemm_sample.csv"), "--kind", "gemm")
    assert products["summary"]["n_predicted"] > 5
    assert products["summary"]["median_ape"] < 20
