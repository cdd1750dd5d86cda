"""Many predictions in a row: what was there before them is no garbage, and is given back to the search for it behind them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from simulator.remembered import undisturbed
from simulator.simulation import simulate_job
from simulator.studies.study_file import load_study
from simulator.studies.sweep import _simulated

TEXT = """
name = "two"
model = "gpt3_1_3b"
cluster = "h100_x8"
set = ["workload.sequence_length=1024"]

[vary]
"workload.global_batch_size" = [8, 16]
"""


@pytest.fixture(autouse=True)
def _thawed() -> None:
    gc.unfreeze()  # other tests of this process may have left something out of the search


def test_a_program_that_has_seen_to_it_is_left_alone() -> None:
    """Of what is left out some may die meanwhile (of other threads); what came since would count if it were left out again."""
    with undisturbed():
        before = gc.get_freeze_count()
        since = [[] for _ in range(10_000)]
        with undisturbed():
            assert before / 2 < gc.get_freeze_count() < before + len(since)
        assert before / 2 < gc.get_freeze_count() < before + len(since)
    assert gc.get_freeze_count() == 0


def test_a_sweep_searches_what_it_makes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []

    def simulated(job: Any) -> Any:
        frozen.append(gc.get_freeze_count())
        return simulate_job(job)

    (tmp_path / "two.toml").write_text(TEXT)
    monkeypatch.setattr("simulator.studies.sweep.simulate_job", simulated)
    monkeypatch.setattr(
        "simulator.studies.sweep.remember_at_most", lambda most: None
    )  # other tests are in this process
    assert len(_simulated(load_study(str(tmp_path / "two.toml")), [0, 1])) == len(frozen) == 2
    assert min(frozen) > 10_000
    assert gc.get_freeze_count() == 0
