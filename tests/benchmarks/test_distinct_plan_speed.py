"""Distinct plans a second on one core, beside an older tree where DTSIM_BASE names a checkout of it.  Prints; never judged by time.

    DTSIM_BASE=../base python -m pytest -m benchmark -s tests/benchmarks/test_distinct_plan_speed.py

Both trees predict the same plans in turns of a block, so that whatever else the machine does weighs on both alike; CPU seconds of the
processes are compared.  Of each plan the step time and the peak of memory are asked for, as a search does: first with nothing priced
before, then again, with all that is remembered of the first time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.distinct_plans import SPACES

HERE = Path(__file__).resolve().parents[2]


class Worker:
    """A process that predicts the plans of a space with one tree."""

    def __init__(self, tree: Path, space: str) -> None:
        script = Path(__file__).with_name("distinct_plans.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), space],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seconds: list[float] = []
        self.figures: list[list[float]] = []
        self.block()
        self.seconds.clear()
        self.figures.clear()

    def block(self) -> None:
        """Predict the next block."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("next\n")
        self._process.stdin.flush()
        seconds, figures = json.loads(self._process.stdout.readline())
        self.seconds.append(seconds)
        self.figures += figures

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@pytest.mark.benchmark
@pytest.mark.parametrize("name", SPACES)
def test_distinct_plans(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Some hundred plans of a job, each once, and once more."""
    space, base = SPACES[name], os.environ.get("DTSIM_BASE", "")
    plans = sum(len(list(space.plans(block))) for block in space.blocks())
    workers = [Worker(HERE, name), *([Worker(Path(base).resolve(), name)] if base else [])]
    try:
        for _ in 2 * space.blocks():
            for worker in workers:
                worker.block()
    finally:
        for worker in workers:
            worker.close()
    title = f"{plans} distinct plans of {space.title}"
    lines = [f"{title:52} {'CPU ms/plan':>12} {'plans/s':>9} {'again, ms':>12} {'plans/s':>9}"]
    turns = slice(0, len(space.blocks())), slice(len(space.blocks()), None)
    for tree, worker in zip(("this tree", "base"), workers, strict=False):
        assert worker.figures[:plans] == worker.figures[plans:]
        assert min(min(found) for found in worker.figures) > 0
        first, again = (sum(worker.seconds[turn]) / plans for turn in turns)
        lines.append(f"{tree:52} {first * 1e3:12.2f} {1 / first:9.0f} {again * 1e3:12.2f} {1 / again:9.0f}")
    if base:
        here, there = workers
        for turn, what in zip(turns, ("first", "again"), strict=True):
            ratios = [b / a for a, b in zip(here.seconds[turn], there.seconds[turn], strict=True)]
            lines.append(
                f"ratio, {what}: all {sum(there.seconds[turn]) / sum(here.seconds[turn]):.2f}, median block "
                f"{statistics.median(ratios):.2f}, blocks " + " ".join(f"{ratio:.1f}" for ratio in ratios)
            )
        differ = sum(a != b for a, b in zip(here.figures, there.figures, strict=True))
        lines.append(f"plans whose step time or peak differs: {differ} of {2 * plans}")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
