"""Traces that dtsim wrote itself, where a measured one may stand: one prediction beside another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator import load_job, simulate_job
from simulator.importers.jobs import import_file

Dtsim = Callable[..., tuple[int, str, str]]
JOB = "gpt2_124m_2gpu"


def written(dtsim: Dtsim, path: Path, *settings: str) -> Path:
    said = [word for setting in settings for word in ("--set", setting)]
    assert 0 == dtsim("run", JOB, *said, "--trace", str(path))[0]
    return path


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_step_beside_its_own_trace_differs_in_nothing(dtsim: Dtsim, tmp_path: Path, name: str) -> None:
    path = written(dtsim, tmp_path / name)
    code, text, error = dtsim("run", JOB, "--measured", str(path), "--json")
    assert (0, "") == (code, error)
    answer = json.loads(text)
    measured = answer["measured"]
    assert pytest.approx(answer["step_time_s"]["value"], rel=1e-9) == measured["step_time_s"]
    assert {"gemm", "attention", "memory_bound", "all_reduce"} <= {row["kind"] for row in measured["kernels"]}
    for row in measured["kernels"]:
        assert pytest.approx(0.0, abs=1e-6) == row["error_pct"], row
        assert row["predicted_bytes"] == row["measured_bytes"], row


def test_what_a_change_does_shows_by_kind(dtsim: Dtsim, tmp_path: Path) -> None:
    path = written(dtsim, tmp_path / "step.json", "plan.recompute=full")
    rows = {
        row["kind"]: row
        for row in json.loads(dtsim("run", JOB, "--measured", str(path), "--json")[1])["measured"]["kernels"]
    }
    assert rows["gemm"]["measured_s"] > 1.1 * rows["gemm"]["predicted_s"]
    assert rows["all_reduce"]["measured_bytes"] == rows["all_reduce"]["predicted_bytes"]


def test_a_trace_of_another_batch_is_refused_as_a_log_is(dtsim: Dtsim, tmp_path: Path) -> None:
    path = written(dtsim, tmp_path / "step.json")
    code, _, error = dtsim("run", JOB, "--measured", str(path), "--set", "workload.global_batch_size=64")
    assert 2 == code
    assert "its steps take" in error


def test_import_says_what_it_is(dtsim: Dtsim, tmp_path: Path) -> None:
    found = import_file(written(dtsim, tmp_path / "step.json"))
    assert ("dtsim_trace", 2) == (found.source_format, found.tables["cluster"]["gpus"])
    assert found.steps is not None
    assert pytest.approx(simulate_job(load_job(JOB)).step_time) == found.steps.median
    assert "prediction" in dtsim("import", str(tmp_path / "step.json"))[1]


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"makespan_s": 0.0}, "takes no time"),
        ({"makespan_s": "long"}, "takes no time"),
        ({"makespan_s": 1.0, "operations": [1]}, "operations"),
        ({"makespan_s": 1.0, "operations": [{"kind": "gemm", "seconds": -1}]}, "operations"),
    ],
)
def test_one_that_was_edited_is_refused_in_a_sentence(
    dtsim: Dtsim, tmp_path: Path, about: dict[str, Any], said: str
) -> None:
    path = tmp_path / "step.json"
    path.write_text('{"traceEvents":[\n],"displayTimeUnit":"ms","otherData":' + json.dumps(about) + "}\n")
    code, _, error = dtsim("import", str(path))
    assert (2, 1) == (code, len(error.strip().splitlines()))
    assert said in error
