"""The blind sets: rows that were committed before they were predicted, and what was predicted of them at first."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from simulator.accuracy.scores import Outcome, scores_by_group
from simulator.importers.table.rows import flag, number, read_rows
from tests.validation import evidence
from tests.validation.evidence import ROUNDS

DATA = Path(__file__).parents[1] / "data"
ROOT = Path(__file__).parents[2]
TABLES = [f"{name}_{what}" for name in ROUNDS for what in ("runs", "memory")]


def first(table: str) -> list[Outcome]:
    return [
        Outcome(
            case_id=row["case_id"],
            quantity=row["quantity"],
            group=row["group"],
            measured=number(row, "measured"),
            predicted=number(row, "predicted"),
            low=number(row, "low"),
            high=number(row, "high"),
            counts=bool(flag(row, "counts")),
        )
        for row in read_rows(DATA / f"{table}_first.csv")
        if row["quantity"] != "out_of_memory"
    ]


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_first_prediction_and_a_place(table: str) -> None:
    rows = read_rows(DATA / f"{table}.csv")
    assert {row["case_id"] for row in rows if row["oom"] == "0"} == {o.case_id for o in first(table)}
    assert len({row["case_id"] for row in rows}) == len(rows)
    assert all("@" in row["source_loc"] for row in rows)


@pytest.mark.parametrize("table", TABLES)
def test_no_row_stands_in_another_table(table: str) -> None:
    before = ROUNDS[: ROUNDS.index(table.split("_")[0])]
    others = ["held_out_runs", "held_out_memory", *(t for t in TABLES if t.split("_")[0] in before)]
    shipped = ROOT / "workloads" / "published" / "measured_runs.csv"
    known = {row["source"] for path in (*(DATA / f"{t}.csv" for t in others), shipped) for row in read_rows(path)}
    assert set() == known & {row["source"] for row in read_rows(DATA / f"{table}.csv")}


@pytest.mark.parametrize(
    ("table", "over_rows", "over_sources", "inside"),
    [
        ("blind_runs", 0.226, 0.201, 0.362),
        ("blind_memory", 0.179, 0.247, 0.282),
        ("blind2_runs", 0.271, 0.247, 0.622),
        ("blind2_memory", 0.254, 0.172, 0.651),
        ("blind3_runs", 0.327, 0.221, 0.379),
        ("blind3_memory", 0.353, 0.305, 0.471),
        ("blind4_runs", 0.222, 0.311, 0.779),
        ("blind4_memory", 0.222, 0.189, 0.738),
        ("blind5_runs", 0.145, 0.197, 0.884),
        ("blind5_memory", 0.133, 0.210, 0.827),
        ("blind6_runs", 0.152, 0.123, 0.795),
        ("blind6_memory", 0.121, 0.111, 0.770),
        ("blind7_runs", 0.172, 0.132, 0.838),
        ("blind7_memory", 0.139, 0.150, 0.756),
        ("blind8_runs", 0.254, 0.198, 0.710),
        ("blind8_memory", 0.209, 0.137, 0.660),
        ("blind9_runs", 0.205, 0.198, 0.795),
        ("blind9_memory", 0.168, 0.180, 0.750),
        ("blind10_runs", 0.279, 0.158, 0.592),
        ("blind10_memory", 0.178, 0.189, 0.687),
        ("blind11_runs", 0.121, 0.136, 0.718),
        ("blind11_memory", 0.133, 0.168, 0.833),
        ("blind12_runs", 0.181, 0.186, 0.542),
        ("blind12_memory", 0.247, 0.173, 0.534),
        ("blind13_runs", 0.203, 0.140, 0.762),
        ("blind13_memory", 0.168, 0.167, 0.553),
        ("blind14_runs", 0.144, 0.166, 0.859),
        ("blind14_memory", 0.146, 0.085, 0.730),
        ("blind15_runs", 0.149, 0.107, 0.748),
        ("blind15_memory", 0.115, 0.136, 0.805),
        ("blind16_runs", 0.236, 0.185, 0.661),
        ("blind16_memory", 0.147, 0.125, 0.750),
    ],
)
def test_first_predictions_err_as_the_documents_state(
    table: str, over_rows: float, over_sources: float, inside: float
) -> None:
    outcomes = [o for o in first(table) if o.counts]
    errors = [abs(o.predicted / o.measured - 1) if o.predicted and o.measured else 1.0 for o in outcomes]
    assert median(errors) == pytest.approx(over_rows, abs=0.001)
    held = [o for o in outcomes if o.low and o.high and o.measured and o.low <= o.measured <= o.high]
    assert len(held) / len(outcomes) == pytest.approx(inside, abs=0.001)
    by_source = [s.median_ape for s in scores_by_group(outcomes).values() if s.median_ape is not None]
    assert median(by_source) == pytest.approx(over_sources, abs=0.001)


@pytest.mark.slow
def test_a_card_that_was_found_out_later_was_not_known_at_first() -> None:
    found = {o.case_id: o for o in evidence.first("blind_runs")}
    assert "machine" in found["aoe2e-0001"].unknown  # predicted for a card of 700 W, ran on one of 500 W
    assert "machine" not in found["aotut-0001"].unknown  # its card was told


def test_the_readme_joins_them_all() -> None:
    outcomes = [o for name in ROUNDS for o in first(f"{name}_runs") if o.counts]
    errors = [abs(o.predicted / o.measured - 1) if o.predicted and o.measured else 1.0 for o in outcomes]
    held = [o for o in outcomes if o.low and o.high and o.measured and o.low <= o.measured <= o.high]
    sources = len({(o.case_id.split("-")[0], o.group) for o in outcomes})
    inside = f"{len(held) / len(outcomes):.0%}".replace("%", " %")
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"| {len(outcomes)} runs, {sources} sources | {100 * median(errors):.1f} % | {inside} |" in readme
    assert (
        f"{len(outcomes)} runs of {sources} sources that nobody had looked at: {100 * median(errors):.0f} % at first try"
        in readme
    )
