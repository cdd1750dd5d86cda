"""Rows of a comparison: sorted, chosen, with money and energy, and one line for a refusal that repeats."""

from __future__ import annotations

import json

import pytest

from simulator.errors import SpecError, UnknownNameError
from simulator.studies.comparison import SHORT_COLUMNS, Comparison, compare
from simulator.studies.variants import variants
from tests.command import Dtsim

JOB = "gpt3_13b_2xdgx_a100"


@pytest.fixture(scope="module")
def compared() -> Comparison:
    settings = ["plan.tensor_parallel=3,8,4,1", "cluster.price_per_gpu_hour=2 $/h"]
    return compare(JOB, variants([], [0, 1], settings))


def test_the_best_comes_first_and_what_has_no_number_last(compared: Comparison) -> None:
    for column, best in (("tokens/s", max), ("step", min), ("mfu", max), ("memory", min), ("price", min)):
        rows = compared.sorted_by(column).records()
        values = [row.get(SHORT_COLUMNS.get(column, column)) for row in rows]
        known = [value for value in values if value is not None]
        assert known[0] == best(known)
        assert values == known + [None] * (len(values) - len(known))
    assert [row.name for row in compared.sorted_by("name").rows] == sorted(row.name for row in compared.rows)


def test_only_what_fits_is_left_and_the_rest_is_counted(compared: Comparison) -> None:
    left = compared.fitting()
    assert all(row.prediction is not None and row.prediction.fits for row in left.rows)
    assert 0 < len(left.rows) < len(compared.rows)
    assert left.left_out == len(compared.rows) - len(left.rows)
    assert f"left out: {left.left_out}" in left.sections()[0].below[0]


def test_price_follows_from_gpu_hours_and_the_title_says_what_was_run(compared: Comparison) -> None:
    row = next(row for row in compared.rows if row.prediction is not None)
    p = row.prediction
    assert p is not None
    assert row.price == pytest.approx(2 * 16 * p.step_time / 3600)
    assert row.price_per_million_tokens == pytest.approx(row.price * 1e6 / p.tokens)
    assert compared.sections()[0].title == f"{compared.name}, by zero_stage, tensor_parallel, side by side"


def test_a_rule_that_several_break_is_told_once(compared: Comparison) -> None:
    refused = [row for row in compared.rows if row.prediction is None and "tensor_parallel 3" in row.name]
    lines = next(section.lines for section in compared.sections() if section.title == "cannot be")
    assert 1 == sum("tensor_parallel 3" in line for line in lines)
    assert all(any(row.name in line for line in lines) for row in refused)


def test_quickest_is_by_tokens_where_batches_differ() -> None:
    found = compare(JOB, variants([], [], ["workload.global_batch_size=16,64"]))
    small, large = (row.prediction for row in found.rows)
    assert small is not None
    assert large is not None
    assert small.step_time < large.step_time
    marks = [line[-1] for line in found.sections()[0].table.rows]  # type: ignore[union-attr]
    assert ("quickest" in marks[0]) == (small.tokens / small.step_time > large.tokens / large.step_time)


def test_columns_that_are_not_there_are_refused(compared: Comparison) -> None:
    with pytest.raises(UnknownNameError, match="price"):
        compared.sorted_by("pric")
    with pytest.raises(SpecError, match="price_per_gpu_hour"):
        compare(JOB, variants([], [0, 1], [])).sorted_by("price")


def test_the_command_sorts_and_chooses(dtsim: Dtsim) -> None:
    words = ("compare", JOB, "--zero", "0,1,3", "--set", "plan.tensor_parallel=4,8", "--sort", "step", "--only", "fits")
    code, out, _ = dtsim(*words, "--json")
    rows = json.loads(out)["rows"]
    times = [row["step_time_s"]["value"] for row in rows]
    assert (0, sorted(times)) == (code, times)
    assert all(row["fits"] and row["tokens_per_second"] > 0 for row in rows)
    assert {"price_usd_per_step", "price_usd_per_million_tokens", "fit_probability"} <= set(rows[0])
    for bad in (("--only", "all"), ("--sort", "nothing")):
        assert 2 == dtsim("compare", JOB, "--zero", "0,1", *bad)[0]
    assert 2 == dtsim("compare", JOB, "--gpus", "16,32", "--sort", "step")[0]


def test_what_both_have_in_common_makes_no_two_variants_alike() -> None:
    """The band of a run whose code nobody named is twice as wide towards slower; that of two plans beside each other is not."""
    loaded = compare(None, variants([], [], ["plan.recompute=none,full"]), model="gpt3_1_3b", cluster="dgx_a100")
    quick, slow = (p for _, p in loaded.predicted)
    assert quick.alike < slow.step_time < quick.high
    marks = [line[-1] for line in loaded.sections()[0].table.rows]  # type: ignore[union-attr]
    assert ["quick" in mark for mark in marks] == [True, False]


def test_rows_without_a_plan_are_said_to_be_of_none(dtsim: Dtsim) -> None:
    names = ("compare", "--model", "gpt3_13b", "--cluster", "dgx_a100", "--vary", "cluster.nodes=2,4")
    assert "no plan is named" in dtsim(*names)[2]
    assert "no plan is named" in dtsim(*names[:-2], "--gpus", "16,32")[2]
    for more in (("--set", "tp=4"), ("--zero", "1,3"), ("--schedule", "1f1b")):
        assert "no plan is named" not in dtsim(*names, *more)[2]
    assert "no plan is named" not in dtsim("compare", JOB, "--vary", "cluster.nodes=2,4")[2]
