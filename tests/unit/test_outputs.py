"""Files that a command is to write: named for what is written to them, or refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "gpt2_124m_1gpu", "--trace", "step.txt"), "a trace's file ending names its format"),
        (("run", "gpt2_124m_1gpu", "--trace", "-"), "has none of: .json, .json.gz"),
        (("run", "gpt2_124m_1gpu", "--report", "step.pdf"), "a page's file ending names its format"),
        (("goodput", "gpt2_124m_1gpu", "--report", "-"), "has none of: .html, .htm"),
        (("validate", "--report", "x.png"), "has none of: .html, .htm"),
        (("export", "chrome", "gpt2_124m_1gpu", "-o", "-"), "has none of: .json, .json.gz"),
        (("export", "chakra", "gpt2_124m_1gpu", "-o", "-"), "a file for each GPU"),
        (("show", "gpus", "h100_80gb_sxm", "--rows", "3"), "--rows cuts the lines of a program, but gpus h100"),
        (("show", "schema", "run", "--set", "a.b=c"), "--set changes a job, but schema run"),
    ],
)
def test_an_output_that_is_none_is_refused_before_anything_is_written(
    words: tuple[str, ...], said: str, dtsim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = dtsim(*words)
    assert (2, "", 1) == (code, out, len(error.strip().splitlines()))
    assert said in error
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("run", "gpt2_124m_1gpu", "--plot", "missing/step.png"),
        ("run", "gpt2_124m_1gpu", "-o", "missing/step.csv"),
        ("goodput", "gpt2_124m_1gpu", "-o", "missing/runs.csv"),
        ("search", "gpt2_124m_1gpu", "--range", "tp=1", "--plot", "missing/plans.png"),
        ("fit", "gpt2_124m", "--cluster", "h100_x8", "--fewest", "gpus", "-o", "missing/job.toml"),
        ("export", "chakra", "gpt2_124m_2gpu", "-o", "missing/step"),
        ("init", "-o", "missing/job.toml"),
        ("validate", "--report", "missing/errors.html"),
    ],
)
def test_a_folder_that_is_not_there_is_told_before_anything_is_computed(
    words: tuple[str, ...], dtsim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = dtsim(*words)
    assert (2, "") == (code, out)
    assert f"error: {words[-1]}: its folder is not there. Way out: mkdir -p missing" == error.strip()


def test_a_folder_that_is_a_file_is_told(dtsim: Any, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    code, _, error = dtsim("init", "-o", str(tmp_path / "there" / "job.toml"))
    assert 2 == code
    assert "is no folder" in error


def test_files_are_not_made_of_an_answer_that_has_no_folder_of_its_own(dtsim: Any, tmp_path: Path) -> None:
    """Profiles make the folder that they are written to; that stays so."""
    table = tmp_path / "gemm.csv"
    table.write_text("")
    code, _, error = dtsim("calibrate", "gemm", str(table), "-o", str(tmp_path / "new" / "mine.toml"))
    assert 2 == code
    assert "folder" not in error


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".png", ".json"])
def test_a_job_goes_to_a_file_of_its_ending(ending: str, dtsim: Any, tmp_path: Path) -> None:
    path = tmp_path / f"job{ending}"
    code, out, error = dtsim("fit", "gpt2_124m", "--cluster", "h100_x8", "--fewest", "gpus", "-o", str(path))
    assert (2, "", 1) == (code, out, len(error.strip().splitlines()))
    assert f"{path}: -o writes a job (.toml)" in error
    assert not path.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "gpt2_124m", "--cluster", "h100_x8", "--fewest", "gpus", "-o", "-"),
        ("search", "gpt2_124m_1gpu", "--range", "tp=1", "-o", "-"),
        ("search", "gpt2_124m_1gpu", "--range", "tp=1", "-o", "-", "--json"),
    ],
)
def test_standard_output_has_the_answer_already(
    words: tuple[str, ...], dtsim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = dtsim(*words)
    assert (2, "", 1) == (code, out, len(error.strip().splitlines()))
    assert "-o - would write to standard output, where the answer goes. Way out: -o job.toml" in error
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "typed"), [("-job.toml", "dtsim run ./-job.toml"), ("my job.toml", "dtsim run 'my job.toml'")]
)
def test_the_next_command_can_be_typed_as_it_stands(
    name: str, typed: str, dtsim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = dtsim("init", "--model", "gpt2_124m", "--cluster", "a100_x8", "--gpus", "1", "-o", name)
    assert 0 == code
    assert error.strip().endswith(f"Next: {typed}")
