"""Scores of a validation, checked by hand on tables small enough to do so."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.accuracy.scores import OUT_OF_MEMORY, Outcome, score, scores_by_group, spearman
from simulator.accuracy.validate import load_table, run_errors, without_own_source
from simulator.calibration.runs.peak_memory import PeakError, export_memory_residuals, fit_memory_residuals
from simulator.calibration.runs.step_time import RunError, export_run_residuals, fit_run_residuals
from simulator.errors import CalibrationError
from simulator.hardware.memory_residuals import MemoryResiduals
from simulator.hardware.run_residuals import RunResiduals
from simulator.specs import load_spec


def outcome(measured: float | None, predicted: float | None, group: str = "a", **facts: object) -> Outcome:
    values = {"case_id": "row", "quantity": "step_time_s", "group": group, "measured": measured, "predicted": predicted}
    return Outcome(**{**values, **facts})  # type: ignore[arg-type]


def test_errors_are_relative_to_what_was_measured() -> None:
    scores = score([outcome(10, 11), outcome(10, 8), outcome(10, 10)])
    assert pytest.approx(0.1) == scores.mape
    assert pytest.approx(0.1) == scores.median_ape
    assert pytest.approx(0.2) == scores.max_ape
    assert pytest.approx(0.18) == scores.p90_ape
    assert pytest.approx(0.0) == scores.bias


def test_a_row_that_was_not_predicted_counts_as_an_error_of_100_percent() -> None:
    scores = score([outcome(10, 10), outcome(10, None, reason="not modelled")])
    assert (2, 1) == (scores.n, scores.n_predicted)
    assert pytest.approx(0.5) == scores.mape
    assert 0.0 == scores.bias


def test_a_row_with_incomplete_inputs_does_not_count() -> None:
    scores = score([outcome(10, 10), outcome(10, None, reason="quality C", counts=False)])
    assert (1, 0.0) == (scores.n, scores.mape)


def test_the_median_over_groups_gives_a_large_source_no_more_weight() -> None:
    rows = [outcome(10, 15, "large")] * 9 + [outcome(10, 11, "b"), outcome(10, 12, "c")]
    assert pytest.approx(0.5) == score(rows).median_ape
    assert pytest.approx(0.2) == score(rows).median_over_groups
    assert ["large", "b", "c"] == list(scores_by_group(rows))


def test_verdicts_are_counted_apart_from_errors() -> None:
    said = [(1, 1), (1, 1), (1, 0), (0, 1), (0, 0), (0, 0)]
    rows = [outcome(m, p, quantity=OUT_OF_MEMORY) for m, p in said]
    scores = score([*rows, outcome(1.0, None, quantity=OUT_OF_MEMORY, reason="not modelled")])
    expected = {"tp": 2, "fp": 1, "fn": 1, "tn": 2, "precision": 2 / 3, "recall": 2 / 3}
    assert expected == scores.out_of_memory
    assert (0, None) == (scores.n, scores.mape)


def test_a_band_covers_what_lies_between_its_ends() -> None:
    rows = [outcome(10, 11, low=9.0, high=12.0), outcome(10, 20, low=15.0, high=30.0), outcome(10, 10)]
    assert 0.5 == score(rows).band_coverage
    assert pytest.approx((12 / 9 + 2) / 2) == score(rows).band_width


def sweep(predicted: list[float], name: str = "s") -> list[Outcome]:
    return [outcome(i + 1.0, p, sweep=name) for i, p in enumerate(predicted)]


def test_rank_correlation_is_the_mean_over_sweeps() -> None:
    up, down = [1.0, 2, 3, 4, 5, 6, 7, 8], [8.0, 7, 6, 5, 4, 3, 2, 1]
    assert (pytest.approx(1.0), 1) == spearman(sweep(up))
    assert (pytest.approx(0.0), 2) == spearman(sweep(up, "one") + sweep(down, "two"))


def test_ties_share_their_rank() -> None:
    tied, _ = spearman(sweep([1.0, 1, 3, 4, 5, 6, 7, 8]))
    assert pytest.approx(0.99402979) == tied


def test_a_short_or_flat_sweep_says_nothing() -> None:
    assert (None, 0) == spearman(sweep([1.0, 2, 3, 4, 5, 6, 7]))
    flat = [outcome(10 + i / 10, 10, sweep="s") for i in range(8)]
    assert (None, 0) == spearman(flat)


def test_an_empty_table_has_no_scores() -> None:
    scores = score([]).to_dict()
    assert (0, None, None, None) == (scores["n"], scores["mape"], scores["bias"], scores["spearman"])


def test_a_measured_zero_is_met_or_missed() -> None:
    assert (0.0, 1.0) == (outcome(0.0, 0.0).error, outcome(0.0, 0.5).error)


def runs(kind: str, source: str, ratio: float, n: int) -> list[RunError]:
    return [RunError(kind=kind, source=source, measured=ratio, predicted=1.0) for _ in range(n)]


def test_a_band_of_whole_runs_leaves_one_of_ten_out_on_each_side() -> None:
    errors = [math.exp(0.01 * i) for i in range(-99, 201, 2)]
    many = [RunError(kind="tensor", source=f"s{i}", measured=e, predicted=1.0) for i, e in enumerate(errors)]
    band = fit_run_residuals(many).kind["any"]
    assert pytest.approx(1.69 / 1.2816, rel=1e-3) == band.sigma_slower
    assert pytest.approx(0.69 / 1.2816, rel=1e-3) == band.sigma_faster
    low, high = math.exp(-1.2816 * band.sigma_faster), math.exp(1.2816 * band.sigma_slower)
    assert 0.8 == pytest.approx(sum(low <= e <= high for e in errors) / len(errors), abs=0.01)


def test_a_run_slower_than_predicted_widens_the_band_upwards_only() -> None:
    band = fit_run_residuals(runs("tensor", "a", 1.2, 9)).kind["any"]
    assert pytest.approx(math.log(1.2) / 1.2816, rel=1e-3) == band.sigma_slower
    assert 0.01 == band.sigma_faster


def test_what_prices_explain_is_not_counted_twice() -> None:
    wide = [RunError(kind="tensor", source="a", measured=1.1, predicted=1.0, priced=0.2)]
    assert 0.01 == fit_run_residuals(wide).kind["any"].sigma_slower


def test_a_sweep_of_hundreds_does_not_decide_alone() -> None:
    many = runs("tensor", "large", 2.0, 90) + [r for i in range(99) for r in runs("tensor", f"s{i}", 1.1, 1)]
    assert fit_run_residuals(many).kind["any"].sigma_slower < 0.1
    assert (189, 100) == (fit_run_residuals(many).kind["tensor"].runs, fit_run_residuals(many).kind["tensor"].sources)


def test_a_kind_of_few_sources_leans_on_all_runs() -> None:
    rest = [r for i in range(20) for r in runs("pipeline", f"s{i}", 1.1, 4)]
    fitted = fit_run_residuals(rest + runs("tensor", "a", 2.0, 20)).kind
    assert fitted["pipeline"].sigma_slower < 0.1
    assert fitted["tensor"].sigma_slower < 0.6
    assert {"any", "pipeline"} == set(fit_run_residuals(rest + runs("tensor", "a", 2.0, 3)).kind)


def test_what_an_unknown_code_is_worth_shows_on_first_tries() -> None:
    told = runs("tensor", "a", 1.01, 20)
    looked_up = [replace(run, unknown=("code",)) for run in runs("tensor", "b", 1.05, 20)]
    tried = [replace(run, unknown=("code",), first=True) for run in runs("tensor", "c", 1.6, 20)]
    later, all_of_them = (fit_run_residuals([*told, *some]).unknown["code"] for some in (looked_up, looked_up + tried))
    assert later.sigma_slower < 0.05 < 0.3 < all_of_them.sigma_slower
    assert (20, 1) == (all_of_them.runs, all_of_them.sources), "those that were looked up do not dilute them"


def test_a_kind_leans_on_first_tries_of_other_kinds() -> None:
    own = runs("tensor", "a", 1.01, 20)
    tried = [replace(run, first=True) for run in runs("pipeline", "b", 1.3, 20)]
    assert (
        fit_run_residuals(own + tried).kind["tensor"].sigma_slower > fit_run_residuals(own).kind["tensor"].sigma_slower
    )


def test_a_table_of_kept_predictions_says_which_were_first() -> None:
    path = Path(__file__).parents[1] / "data" / "blind_runs_first.csv"
    outcomes = [o for some in load_table(str(path), "predictions").outcomes() for o in some]
    assert run_errors(outcomes)
    assert all(run.first for run in run_errors(outcomes))


def test_residuals_need_runs() -> None:
    with pytest.raises(CalibrationError, match="at least one run"):
        fit_run_residuals([])


def test_residuals_are_read_back_as_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    fitted = fit_run_residuals(runs("tensor", 'a "quoted" source', 1.25, 3))
    export_run_residuals(fitted, ['a "quoted" source'], tmp_path / "run_residuals.toml")
    assert fitted.kind == load_spec(tmp_path / "run_residuals.toml", RunResiduals).kind


def peaks(source: str, part: str, ratio: float, n: int) -> list[PeakError]:
    return [PeakError(source=source, measured=100.0 * ratio, by_category={part: 60.0, "context": 40.0})] * n


def test_residuals_of_memory_tell_parts_apart() -> None:
    """Peaks of weights that are right and of activations that are 20 % off: the activations have the wider band."""
    fitted = fit_memory_residuals(peaks("a", "weights", 1.01, 10) + peaks("b", "activations", 1.2, 10)).part
    assert fitted["activations"].sigma > 3 * fitted["states"].sigma
    assert (10, 1) == (fitted["states"].runs, fitted["states"].sources)


def test_residuals_of_memory_weigh_every_source_the_same_and_cover_four_fifths() -> None:
    many = peaks("a", "weights", 1.01, 96) + [p for s in "bcde" for p in peaks(s, "weights", 1.1, 1)]
    band = fit_memory_residuals(many)
    width = 1.2816 * band.sigma({"weights": 60.0, "context": 40.0})
    assert math.log(1.1) == pytest.approx(width, rel=0.01)


def test_residuals_of_memory_need_peaks() -> None:
    with pytest.raises(CalibrationError, match="at least one peak"):
        fit_memory_residuals([])


def test_residuals_of_memory_are_read_back_as_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    fitted = fit_memory_residuals(peaks('a "quoted" source', "weights", 1.25, 3))
    export_memory_residuals(fitted, ['a "quoted" source'], tmp_path / "memory_residuals.toml")
    read = load_spec(tmp_path / "memory_residuals.toml", MemoryResiduals)
    assert (fitted.part, fitted.unseen) == (read.part, read.unseen)


def test_leaving_a_source_out_makes_its_band_from_the_others() -> None:
    def peak(group: str, predicted: float) -> Outcome:
        terms = (("weights", predicted),)
        return outcome(100.0, predicted, group, quantity="peak_memory_bytes", terms=terms)

    far, near = without_own_source([*[peak("far", 150.0)] * 5, *[peak("near", 101.0)] * 5])[::5]
    assert far.low is not None
    assert near.low is not None
    assert far.high / far.low < near.high / near.low  # type: ignore[operator]


def test_what_was_assumed_widens_the_band_beside_its_kind() -> None:
    """Kinds are made of runs of which all was told; what an assumption adds is what its runs lack beside them."""
    told = [
        RunError(kind="tensor", source=f"s{i}", measured=1.05, predicted=1.0, code="known", gpu="a") for i in range(20)
    ]
    assumed = [
        RunError(kind="tensor", source=f"t{i}", measured=1.5, predicted=1.0, unknown=("code",), code="new", gpu="a")
        for i in range(20)
    ]
    fitted = fit_run_residuals(told + assumed)
    assert fitted.measured == {"known": ("a",)}
    assert fitted.kind == fit_run_residuals(told).kind
    wide = fitted.of("tensor", ("code",)).sigma_slower
    assert math.exp(1.2816 * wide) == pytest.approx(1.5, rel=1e-3)
    assert fitted.unseen("new", "b") == {"code", "machine"}
    assert fitted.unseen("known", "a") == frozenset()
    assert fitted.unseen("known", "b") == {"machine"}
    assert fitted.of("tensor", ("plan",)) == fitted.of("tensor")


def test_peaks_of_codes_that_nobody_looked_up_have_a_wider_band() -> None:
    known = peaks("a", "weights", 1.02, 10)
    unseen = [replace(peak, source="b", unseen=True) for peak in peaks("b", "weights", 1.3, 10)]
    fitted = fit_memory_residuals(known + unseen)
    assert fitted.part == fit_memory_residuals(known).part
    assert fitted.unseen == pytest.approx(math.log(1.3) / 1.2816, rel=0.05)
    assert fitted.sigma({"weights": 1.0}, unseen=True) > 5 * fitted.sigma({"weights": 1.0})


def test_kept_predictions_are_scored_again(tmp_path) -> None:  # type: ignore[no-untyped-def]
    kept = outcome(
        2.0, 1.8, "a", kind="tensor", unknown=("code", "plan"), priced=0.05, low=1.5, high=2.5, code="x", gpu="y"
    )
    table = tmp_path / "kept.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(kept.record()))
        writer.writeheader()
        writer.writerow({name: "" if value is None else value for name, value in kept.record().items()})
    read = load_table(str(table), None)
    (again,) = [o for some in read.outcomes() for o in some]
    assert read.kind == "predictions"
    assert again == kept


def test_a_kind_with_enough_first_tries_leans_on_its_own() -> None:
    """Experts that come out far too fast at first widen no pipeline's band."""

    def some(kind: str, measured: float, first: bool) -> list[RunError]:
        return [
            RunError(kind=kind, source=f"{kind}{i}", measured=measured, predicted=1.0, first=first) for i in range(10)
        ]

    calm = [*some("pipeline", 1.02, False), *some("pipeline", 1.03, True)]
    rough = [*some("experts", 1.05, False), *some("experts", 2.5, True)]
    assert fit_run_residuals(calm + rough).kind["pipeline"] == fit_run_residuals(calm).kind["pipeline"]
    assert fit_run_residuals(calm + rough).kind["experts"].sigma_slower > 0.5
