"""What search and fit find, as a job file inside their JSON: a program that reads the answer runs it without guessing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.job import load_job
from simulator.simulation import simulate_job
from tests.command import Dtsim


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (
            "search --model gpt3_1_3b --cluster dgx_a100 --fix cluster.gpus=16 --fix recompute=full --range tp=1,2",
            "chosen",
        ),
        ("fit gpt3_1_3b --cluster h100_x8 --largest sequence --fix recompute=full --range tp=1,2", "plan"),
        ("fit gpt3_1_3b --cluster dgx_a100 --fewest gpus --fix recompute=full --range tp=1,2", "plan"),
    ],
)
def test_the_json_holds_the_job_that_was_found(dtsim: Dtsim, tmp_path: Path, words: str, key: str) -> None:
    """With what was fixed, the batch that was counted out for the search, and what was grown."""
    answer = json.loads(dtsim(*words.split(), "--json")[1])
    path = tmp_path / "found.toml"
    path.write_text(answer["job_file"])
    job = load_job(path)

    assert "full" == job.plan.recompute
    assert answer[key]["step_time_s"] == simulate_job(job).step_time


def test_where_nothing_was_found_there_is_no_job(dtsim: Dtsim) -> None:
    words = "search --model llama3_405b --cluster h100_x8 --range tp=4,8"
    assert None is json.loads(dtsim(*words.split(), "--json")[1])["job_file"]


def test_a_job_that_a_file_cannot_hold_is_none(dtsim: Dtsim) -> None:
    words = "search --model gpt3_1_3b --cluster h100_x8 --range tp=1,2 --set power.pue=1.5"
    answer = json.loads(dtsim(*words.split(), "--json")[1])
    assert answer["chosen"] is not None is answer["job_file"]


def test_the_plan_of_fit_is_told_with_what_was_fixed(dtsim: Dtsim) -> None:
    words = "fit gpt3_1_3b --cluster h100_x8 --fewest gpus --fix recompute=full --range tp=1,2"
    assert "plan.recompute=full" in dtsim(*words.split())[1]


def test_a_job_found_on_another_cluster_has_its_name(dtsim: Dtsim) -> None:
    asked = (
        "--model gpt3_1_3b --cluster a100_x8 --range cluster.name=a100_x8,h100_x8 --fix cluster.gpus=8 --range tp=1,2"
    )
    answer = json.loads(dtsim("search", *asked.split(), "--json")[1])
    assert 'name = "gpt3_1_3b on h100_x8"\n' in answer["job_file"]


def test_what_was_assumed_of_the_work_is_said(dtsim: Dtsim) -> None:
    said = json.loads(dtsim("search", "--model", "gpt3_1_3b", "--cluster", "h100_x8", "--range", "tp=1,2", "--json")[1])
    assert any("global_batch_size = " in one for one in said["provenance"]["assumptions"])


@pytest.mark.parametrize(
    "words",
    [
        "search --model gpt3_1_3b --cluster h100_x8 --range tp=1,2",
        "fit gpt3_1_3b --cluster h100_x8 --fewest gpus --range tp=1,2",
    ],
)
def test_the_job_is_written_whoever_stops_reading_the_answer(
    dtsim: Dtsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """As `| head -3` does."""

    def closed(*answer: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("simulator.cli.search.print_sections", closed)
    monkeypatch.setattr("simulator.cli.fit.print_answer", closed)
    path = tmp_path / "job.toml"
    dtsim(*words.split(), "-o", str(path))
    assert path.is_file()
