"""Predictions of fixed cases against figures.csv: a change that means no change shows none; else its diff is in the review.

`python -m tests.replay` compares bit by bit with the last commit; `python -m tests.replay --write-figures` writes the file anew.
"""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import pytest

from simulator.plan.plan import Plan
from tests.properties.test_every_combination import FAMILIES
from tests.replay.cases import PLANS, cases
from tests.replay.figures import differing, read_figures
from tests.replay.recorder import Recorder

EVERY = 80
"""The quick suite replays all jobs, and of rows and plans every so many."""


def _differ(wanted: list[str]) -> dict[str, tuple[str, str]]:
    recorded, work, recorder = read_figures(), dict(cases()), Recorder()
    out = {}
    try:
        for name in wanted:
            found = recorder.digest(work[name])
            if differing(recorded[name], found):
                out[name] = recorded[name], found.get("figures", found.get("refused", ""))
    finally:
        recorder.close()
    return out


def test_every_job_is_predicted_as_recorded() -> None:
    assert not _differ([name for name in read_figures() if name.startswith("job ")])


def test_some_rows_and_plans_are_predicted_as_recorded() -> None:
    others = [name for name in read_figures() if not name.startswith("job ")]
    assert not _differ(list(itertools.islice(others, 0, None, EVERY)))


@pytest.mark.slow
def test_every_case_is_predicted_as_recorded() -> None:
    assert not _differ(list(read_figures()))


def test_the_record_has_the_cases_of_this_tree() -> None:
    shipped = set(read_figures())
    found = {name for name, _ in cases()}
    assert shipped <= found
    assert all(name.startswith("job ") for name in found - shipped)  # a job of one's own, beside the shipped ones


def test_the_plans_meet_every_profile_family_and_field() -> None:
    plans = [json.loads(line) for line in PLANS.read_text().splitlines()]
    assert len(plans) >= 2000
    assert {plan["family"] for plan in plans} == set(FAMILIES)
    with (Path(__file__).parents[1] / "golden" / "framework_profiles.csv").open(newline="") as file:
        shipped = {row["profile"] for row in csv.DictReader(file)}
    assert {plan["plan"].get("framework", "megatron_core") for plan in plans} >= shipped
    assert {field for plan in plans for field in plan["plan"]} | {"data_parallel"} == set(Plan.model_fields)
