"""Distinct plans a second on one core, beside an older tree where DTSIM_BASE names a checkout of it.  Prints; never judged by time.

    DTSIM_BASE=../base python -m pytest -m benchmark -s tests/benchmarks/test_distinct_plan_speed.py

Both trees predict the same plans, each once, in turns of a block, so that whatever else the machine does weighs on both alike; CPU
seconds of the processes are compared.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.distinct_plans import BLOCK, PLANS

HERE = Path(__file__).resolve().parents[2]


class Worker:
    """A process that predicts the plans with one tree."""

    def __init__(self, tree: Path) -> None:
        script = Path(__file__).with_name("distinct_plans.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seconds: list[float] = []
        self.steps: list[float] = []
        self.block()
        self.seconds.clear()

    def block(self) -> None:
        """Predict the next block."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("next\n")
        self._process.stdin.flush()
        seconds, steps = json.loads(self._process.stdout.readline())
        self.seconds.append(seconds)
        self.steps += steps

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@pytest.mark.benchmark
def test_distinct_plans(capsys: pytest.CaptureFixture[str]) -> None:
    """378 plans of Llama-3 70B on 512 H100, each once."""
    base = os.environ.get("DTSIM_BASE", "")
    workers = [Worker(HERE), *([Worker(Path(base).resolve())] if base else [])]
    try:
        for _ in range(PLANS // BLOCK):
            for worker in workers:
                worker.block()
    finally:
        for worker in workers:
            worker.close()
    lines = [f"{'378 distinct plans of Llama-3 70B on 512 H100':52} {'CPU ms/plan':>12} {'plans/s':>9}"]
    for name, worker in zip(("this tree", "base"), workers, strict=False):
        assert len(worker.steps) == PLANS
        assert min(worker.steps) > 0
        each = sum(worker.seconds) / PLANS
        lines.append(f"{name:52} {each * 1e3:12.2f} {1 / each:9.0f}")
    if base:
        here, there = workers
        ratios = [b / a for a, b in zip(here.seconds, there.seconds, strict=True)]
        lines.append(
            f"ratio: all {sum(there.seconds) / sum(here.seconds):.2f}, median block {statistics.median(ratios):.2f}, blocks "
            + " ".join(f"{ratio:.1f}" for ratio in ratios)
        )
        lines.append(
            f"step times that differ: {sum(a != b for a, b in zip(here.steps, there.steps, strict=True))} of {PLANS}"
        )
    with capsys.disabled():
        print("\n" + "\n".join(lines))
