"""A run of 54 days on 16,384 GPUs, a thousand times: seconds and memory, and memory over the length of the run.  Prints a table."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import pytest

from simulator.goodput.describe import describe_run
from simulator.goodput.sampled import sample_runs
from simulator.job import load_job

SETTINGS = (
    'reliability.fleet="meta_llama3_2024"',
    'reliability.detection="1 min"',
    'reliability.restart="10 min"',
    'checkpoint.interval="30 min"',
    'checkpoint.bandwidth="2 TB/s"',
)
DAY = 86400.0


def runs(days: float, samples: int) -> str:
    """Simulate; in a process of its own."""
    described = describe_run(load_job("llama3_405b", SETTINGS), None, days * DAY)
    sample_runs(described.model, 1)
    start = time.perf_counter()
    found, _ = sample_runs(described.model, samples)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    failures = found.interruptions.sum(axis=1).mean()
    return f"{days:6g} days x {samples:5}  {failures:8.0f} failures each  {seconds:6.2f} s  {peak:5} MiB"


@pytest.mark.benchmark
def test_a_thousand_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for days, samples in ((54.0, 1000), (540.0, 100), (5400.0, 10)):
        code = f"from tests.benchmarks.test_goodput_speed import runs; print(runs({days}, {samples}))"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        lines.append(out.stdout.rstrip())
    with capsys.disabled():
        print("\n" + "\n".join(lines))
