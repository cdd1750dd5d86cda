"""Logs that nobody tuned on: other clusters than those whose logs the shipped profiles were fitted to."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from simulator.accuracy.nccl import nccl_outcomes
from simulator.accuracy.scores import Outcome
from simulator.calibration.collectives.judge.machine import Machine
from simulator.calibration.collectives.tool import collect_logs
from simulator.hardware.coefficients import Profile
from simulator.importers.table.rows import read_rows
from simulator.specs import load_named, names

FOLDER = Path(__file__).parents[1] / "data" / "held_out_nccl"
INDEX = FOLDER / "index.csv"
ROWS = {row["log_id"]: row for row in read_rows(INDEX)}
UNKNOWN = "metax-c500_1x8_all_gather"


@pytest.fixture(scope="module")
def logs() -> dict[str, list[Outcome]]:
    """The healthy logs' points of at least 1 KiB."""
    out = {}
    for found in nccl_outcomes(list(ROWS.values()), INDEX):
        if found and found[0].counts:
            out[found[0].group] = [one for one in found if float(one.case_id.split(":")[1]) >= 1024]
    return out


def error(points: list[Outcome]) -> float:
    return float(np.median([abs(one.predicted / one.measured - 1) for one in points if one.predicted]))


def test_every_machine_is_told_but_one_that_no_table_knows(logs: dict[str, list[Outcome]]) -> None:
    assert len(ROWS) >= 65
    assert len(logs) >= 50
    assert {UNKNOWN} == {name for name, points in logs.items() if any(one.predicted is None for one in points)}
    assert "metaxlink" in (logs[UNKNOWN][0].reason or "")


def test_the_errors_are_those_that_the_documents_state(logs: dict[str, list[Outcome]]) -> None:
    """docs/held_out.md, logs nobody tuned on."""
    errors = [error(points) for name, points in logs.items() if name != UNKNOWN]
    assert float(np.median(errors)) <= 0.135
    large = [[p for p in points if float(p.case_id.split(":")[1]) >= 2**24] for name, points in logs.items()]
    assert float(np.median([error(points) for points in large if points and points[0].predicted])) <= 0.10
    assert float(np.mean([one <= 0.2 for one in errors])) >= 0.62


def test_the_bands_hold_what_they_say(logs: dict[str, list[Outcome]]) -> None:
    held = [
        np.mean([one.low <= one.measured <= one.high for one in points if one.low is not None and one.high is not None])
        for name, points in logs.items()
        if name != UNKNOWN
    ]
    assert 0.75 <= float(np.mean(held)) <= 0.92


def test_no_such_log_was_used_in_a_fit() -> None:
    profiles = [
        load_named("calibrations", name, Profile)
        for name in names("calibrations")
        if name.startswith("nccl_") and name != "nccl_prior"
    ]
    assert set() == set(ROWS) & {log for profile in profiles for log in profile.logs}


def test_sick_clusters_are_named_without_being_told(tmp_path: Path) -> None:
    """The same index that calls every log healthy: those far slower than their wires, or than a twin, are complained of."""
    with (tmp_path / "index.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(next(iter(ROWS.values()))))
        writer.writeheader()
        writer.writerows({**row, "healthy": "true"} for row in ROWS.values())
    for name in ROWS:
        (tmp_path / f"{name}.csv").write_bytes((FOLDER / f"{name}.csv").read_bytes())
    found = collect_logs([tmp_path / "index.csv"], Machine())
    complained = {line.split(":")[0] for line in found.refused if "slower" in line}
    sick = {name for name, row in ROWS.items() if row["healthy"] == "false"}
    assert len(sick & complained) >= 7
    assert complained - sick <= {"t4_2x1_efa_g4dn_all_reduce", "v100_2x1_efa_p3dn_all_reduce"}


def test_every_log_says_where_it_was_read() -> None:
    assert all(len(row["source"]) > 20 for row in ROWS.values())
