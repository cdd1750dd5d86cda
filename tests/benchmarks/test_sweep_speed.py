"""A sweep on one and on two processes.  Prints; never judged by time.

    python -m pytest -m benchmark -s tests/benchmarks/test_sweep_speed.py            DTSIM_POINTS=10000 for more (minutes)

The ratio of the two depends on what else the machine does.  Processor time does so less: that of the workers and that of the process
which hands out say what two free cores and a third of it would come to.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from simulator.studies.crew import local_crew
from simulator.studies.journal import Journal
from simulator.studies.study_file import load_study
from simulator.studies.sweep import run_sweep
from tests.benchmarks.search_spaces import peak_bytes

POINTS = int(os.environ.get("DTSIM_POINTS", "640"))
STUDY = """
name = "speed"
model = "gpt3_6_7b"
cluster = "dgx_a100"
set = ["cluster.gpus=64", "workload.sequence_length=2048"]
[vary]
"workload.global_batch_size" = [{batches}]
"plan.tensor_parallel" = [1, 2, 4, 8]
"plan.zero_stage" = [0, 1, 2, 3]
"plan.microbatch_size" = [1, 2]
"plan.recompute" = ["none", "full"]
"""


def _of_workers() -> float:
    """Processor seconds of the workers that have ended."""
    times = resource.getrusage(resource.RUSAGE_CHILDREN)
    return times.ru_utime + times.ru_stime


@pytest.mark.benchmark
def test_a_sweep_on_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(batches=", ".join(str(64 * (n + 1)) for n in range(max(1, POINTS // 64)))))
    study, walls, tables, lines, used = load_study(str(path)), [], [], [], []
    for processes in (1, 2):
        own, started, before = time.process_time(), time.monotonic(), _of_workers()
        with Journal(tmp_path / f"{processes}.jsonl") as journal:
            sweep = run_sweep(study, journal, local_crew(processes))
            walls.append(time.monotonic() - started)
            tables.append([{k: v for k, v in row.items() if k != "seconds"} for row in sweep.records()])
        own, theirs = time.process_time() - own, _of_workers() - before
        used.append((own, theirs))
        lines.append(
            f"{processes} processes: {study.size:,} points in {walls[-1]:.1f} s; CPU: {theirs:.1f} s of the workers "
            f"({1e3 * theirs / study.size:.2f} ms/point), {own:.2f} s here; peak {peak_bytes() / 2**20:.0f} MiB here"
        )
    assert tables[0] == tables[1]
    (here, alone), (_, both) = used
    lines.append(
        f"two over one: {walls[0] / walls[1]:.2f} times; by CPU time, had each process a core: {alone / max(both / 2, here):.2f} times"
    )
    with capsys.disabled():
        print("\n" + "\n".join(lines))
