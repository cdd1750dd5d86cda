"""Answers as tables: documented columns, units, files that come back as they were, and what a notebook shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from simulator import load_job, simulate_job
from simulator.accuracy.scores import Outcome
from simulator.accuracy.validate import Table, Validation
from simulator.cli.output import save_table
from simulator.errors import SpecError, UnknownNameError
from simulator.goodput.study import goodput
from simulator.report.columns import column_of
from simulator.report.frames import Records, Stacked, Tabular, records_table, write_table
from simulator.schedules.base import Shape
from simulator.search.search import search
from simulator.search.space import make_space, read_ranges
from simulator.studies.automatic_schedule import automatic_schedule
from simulator.studies.collective_figures import collective_table
from simulator.studies.comparison import compare
from simulator.studies.latency_sweep import latency_sweep
from simulator.studies.scaling import scaling
from simulator.studies.schedule_figures import schedule_figures
from simulator.studies.variants import VariantLoader, variants
from simulator.units import parse
from tests.command import Dtsim

JOB = "gpt3_13b_2xdgx_a100"


def validation() -> Validation:
    rows = (
        Outcome(case_id="a", quantity="step_time_s", group="g", measured=2.0, predicted=3.0, low=1.0, high=4.0,
                terms=(("tp", 1.0),)),
        Outcome(case_id="b", quantity="peak_memory_bytes", group="h", measured=None, reason="no", rank=3,
                terms=(("weights", 5.0),)),
    )  # fmt: skip
    return Validation(table=Table(kind="runs", place="here", rows=[]), outcomes=rows)


ANSWERS: dict[str, Callable[[], Tabular]] = {
    "prediction": lambda: simulate_job(load_job(JOB)),
    "comparison": lambda: compare(JOB, variants([], [1, 3], ["plan.tensor_parallel=2,3"])),
    "scaling": lambda: scaling(VariantLoader(JOB), variants([], [], []), [16, 24, 32], "strong"),
    "sweep": lambda: latency_sweep(["gpipe", "chimera"], Shape(3, 6), [0.0, 1.0]),
    "schedule": lambda: schedule_figures("zbv", 4, 8, 2),
    "auto": lambda: automatic_schedule(Shape(2, 4)),
    "search": lambda: search(make_space(load_job(JOB), read_ranges(["zero_stage=0,1,2", "tp=4,8"]), {})),
    "collectives": lambda: Stacked(tuple(collective_table("all_reduce", [2.0**20, 2.0**30], "dgx_h100", 8))),
    "validation": validation,
    "goodput": lambda: goodput(load_job("llama3_405b_16384xh100"), None, parse("1 d", "s"), 20, 0, False),
}


@pytest.fixture(scope="module", params=ANSWERS)
def answer(request: pytest.FixtureRequest) -> Tabular:
    return ANSWERS[request.param]()


def test_every_column_of_every_table_is_declared_with_its_unit(answer: Tabular) -> None:
    for table in answer.tables():
        frame = answer.to_frame(table)
        assert frame.attrs["units"] == {name: column_of(name).unit for name in frame if column_of(name).unit}
    assert len(answer.to_frame())


def test_a_file_gives_back_what_was_written(answer: Tabular, tmp_path: Path) -> None:
    frame = answer.to_frame()
    back = pandas.read_parquet(write_table(answer, str(tmp_path / "rows.parquet")))
    assert back.attrs["units"] == frame.attrs["units"]
    read = pandas.read_csv(write_table(answer, str(tmp_path / "rows.csv")))
    assert list(frame.columns) == list(back.columns) == list(read.columns)
    for name in frame.select_dtypes("float"):
        pandas.testing.assert_series_equal(frame[name], read[name].astype("float64"), rtol=0, atol=0)
        pandas.testing.assert_series_equal(frame[name], back[name])


def test_a_notebook_shows_numbers_with_their_units(answer: Tabular) -> None:
    shown = answer._repr_html_()
    assert shown.startswith("<table>")
    assert len(answer.records()) >= shown.count("<tr>") - 1 or len(answer.records()) == 1


def test_a_console_shows_a_table_not_every_array(answer: Tabular) -> None:
    shown = repr(answer)
    first, *table = shown.splitlines()
    assert type(answer).__name__ in first
    assert len(table) <= max(len(answer.records()), len(answer.records()[0])) + 2
    assert len(shown) < 40_000
    assert "array(" not in shown


def test_an_unknown_table_offers_the_known_ones(answer: Tabular) -> None:
    with pytest.raises(UnknownNameError, match=next(iter(answer.tables()))):
        answer.to_frame("nothing")


def test_rows_of_a_prediction_say_what_it_says() -> None:
    prediction = simulate_job(load_job(JOB))
    (row,) = prediction.records()
    assert (row["step_time_s"], row["peak_memory_bytes"]) == (prediction.step_time, prediction.peak_memory)
    breakdown = prediction.to_frame("breakdown")
    parts = breakdown.drop(columns=["rank", "replicas", "step_time_s"]).sum(axis=1)
    assert parts.to_numpy() == pytest.approx(prediction.step_time)
    assert prediction.to_frame("memory").peak_memory_bytes.max() == prediction.peak_memory


def test_text_from_a_file_is_shown_as_text() -> None:
    shown = records_table([{"case_id": "<script>", "measured": 1.0}, {"case_id": "b", "measured": None}]).html()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_numbers_are_shown_with_their_units_and_what_is_no_number_as_it_is() -> None:
    row = {
        "step_time_s": 0.25,
        "mfu": 0.5,
        "gpus": 1024,
        "peak_memory_bytes": 2.0**30,
        "fits": True,
        "low_s": float("inf"),
    }
    shown = str(records_table([row, row]))
    for words in ("250 ms", "50.0 %", "1,024", "1 GiB", "yes", "inf"):
        assert words in shown, (words, shown)


def test_missing_whole_numbers_stay_whole() -> None:
    frame = validation().to_frame()
    assert (str(frame["rank"].dtype), frame["rank"][1]) == ("Int64", 3)
    assert [1.0, None] == frame["tp_s"].astype(object).where(frame["tp_s"].notna(), None).tolist()


def test_other_endings_are_refused_before_anything_is_computed(dtsim: Dtsim, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"\.csv, \.parquet"):
        write_table(validation(), str(tmp_path / "rows.xlsx"))
    code, out, said = dtsim("run", "no_such_job", "-o", str(tmp_path / "rows.txt"))
    assert (2, "", True) == (code, out, "names its format" in said)


@pytest.mark.parametrize(
    "words",
    [
        ("run", JOB),
        ("compare", JOB, "--zero", "0,1"),
        ("compare", JOB, "--gpus", "16,32"),
        ("collective", "all_reduce", "--sizes", "1MiB:8MiB", "--cluster", "dgx_h100", "--ranks", "8"),
        ("search", JOB, "--range", "plan.zero_stage=0,1"),
    ],
)
def test_verbs_write_their_table(dtsim: Dtsim, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "rows.csv"
    assert 0 == dtsim(*words, "-o", str(path))[0]
    assert len(pandas.read_csv(path))
    assert 2 == dtsim(*words, "-o", str(path))[0], "it exists already"


def test_a_run_without_a_table_needs_no_pandas() -> None:
    ask = (
        "import sys; from simulator.cli import main\n"
        "try: main(['run', 'gpt2_124m_1gpu', '--json'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'pandas', 'pyarrow', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert "[]" == found.stderr.strip().splitlines()[-1]


class _Mixed(Tabular):
    """A table with a column of numbers and words, as sweeps of settings have it."""

    def tables(self) -> dict[str, Records]:
        return {"rows": lambda: [{"group": value} for value in (1, "x", None, [2])]}

    def to_dict(self) -> dict[str, Any]:
        return {}


def test_a_column_of_numbers_and_words_is_words_in_a_file_of_columns(tmp_path: Path) -> None:
    read = pandas.read_parquet(write_table(_Mixed(), str(tmp_path / "rows.parquet")))["group"]
    assert ["1", "x", "[2]"] == read.dropna().tolist()
    assert read.isna().tolist() == [False, False, True, False]


class _Long(_Mixed):
    """Rows made one by one, of which the first thousands say nothing of how the later ones are."""

    def tables(self) -> dict[str, Records]:
        late = {"reason": "no", "step_time_s": 0.1, "gpus": 2**60 + 1, "fits": True, "group": 1, "measured": 2.5}
        return {
            "rows": lambda: ({"case_id": str(n), "measured": n} | (late if n > 9_000 else {}) for n in range(9_010))
        }


def test_a_long_table_is_one_table_whatever_its_rows_begin_with(tmp_path: Path) -> None:
    frame = _Long().to_frame()
    back = pandas.read_parquet(write_table(_Long(), str(tmp_path / "rows.parquet")))
    pandas.testing.assert_frame_equal(frame, back)
    assert back.attrs == frame.attrs
    write_table(_Long(), str(tmp_path / "rows.csv"))
    assert (tmp_path / "rows.csv").read_text() == frame.to_csv(index=False)


class _Empty(_Mixed):
    def tables(self) -> dict[str, Records]:
        return {"rows": list}


def test_a_table_without_rows_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A validation that is stopped before its first row has nothing to say, not a file that no reader takes."""
    save_table(_Empty(), str(tmp_path / "rows.csv"))
    assert [] == list(tmp_path.iterdir())
    assert "is not written: its table has no rows" in capsys.readouterr().err
