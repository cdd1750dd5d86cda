"""Sweeps of thousands of points: what is held in memory, and in which blocks the points go out."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.remembered import undisturbed
from simulator.studies.crew import Crew
from simulator.studies.journal import Journal
from simulator.studies.study_file import Study, load_study
from simulator.studies.sweep import run_sweep


def _study(folder: Path, batches: int) -> Study:
    """One with nine points for each size of the batch."""
    file = folder / "large.toml"
    file.write_text(f"""
name = "large"
model = "gpt3_1_3b"
cluster = "h100_x8"

[vary]
"workload.global_batch_size" = {[8 * (n + 1) for n in range(batches)]}
"plan.zero_stage" = [0, 1, 3]
tp = [1, 2, 3]
""")
    return load_study(str(file))


class _Known(Crew):
    """Workers that know every answer at once."""

    def __init__(self, width: int = 0) -> None:
        self.size, self.blocks, self.width = 2, list[int](), width

    def run(self, work: Any, context: Any, blocks: Any, given_up: Any) -> Iterator[Any]:
        for block in blocks:
            self.blocks.append(len(block))
            row = {"status": "ok", "fits": True}
            yield [(n, row | {"step_time_s": 1 + n % 7, "reason": f"{n:{self.width}}"}) for n in block]


def _held_at_the_end(journals: Path, count: int) -> tuple[int, int]:
    """Bytes after a sweep of nine times so many points, and after one that finds all of them done."""
    study = _study(journals, count)
    held = []
    for there in (0, 9 * count):
        tracemalloc.start()
        with undisturbed(), Journal(journals / f"{count}.jsonl") as journal:
            found = run_sweep(study, journal, _Known(5_000))
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert (found.found, found.counts, found.best and found.best["point"]) == (there, {"ok": 9 * count}, 0)
    return held[0], held[1]


def test_memory_hardly_grows_with_the_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes of where a point's result is, nothing of the result, also where all are resumed.

    What other threads of the process make meanwhile is counted, too, so the least of up to three tries tells.
    """
    monkeypatch.setattr("simulator.studies.sweep._SECONDS", 0.01)  # small blocks
    done = resumed = most = 900 * 100
    for number in range(3):
        journals = tmp_path / str(number)
        journals.mkdir()
        few, many = (_held_at_the_end(journals, count) for count in (100, 200))
        done, resumed = min(done, many[0] - few[0]), min(resumed, many[1] - few[1])
        if max(done, resumed) < most:
            return
    pytest.fail(f"{done} and {resumed} bytes more for 900 points more, at most {most} are right")


def test_blocks_have_all_points_once_and_shrink_towards_the_end(tmp_path: Path) -> None:
    crew = _Known()
    with Journal(tmp_path / "known.jsonl") as journal:
        found = run_sweep(_study(tmp_path, 300), journal, crew)
    assert sum(crew.blocks) == found.counts["ok"] == 2_700
    assert 10 < len(crew.blocks) < 200
    assert crew.blocks[-1] == 1
