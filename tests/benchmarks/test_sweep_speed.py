"""A sweep on one and on two processes.  Prints; never judged by time.

    python -m pytest -m benchmark -s tests/benchmarks/test_sweep_speed.py            DTSIM_POINTS=10000 for more (minutes)

The ratio of the two depends on what else the machine does; the processor time that the process which hands out spends itself does not, and
bounds it.
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


@pytest.mark.benchmark
def test_a_sweep_on_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(batches=", ".join(str(64 * (n + 1)) for n in range(max(1, POINTS // 64)))))
    study, walls, tables, lines = load_study(str(path)), [], [], []
    for processes in (1, 2):
        own, started = time.process_time(), time.monotonic()
        with Journal(tmp_path / f"{processes}.jsonl") as journal:
            sweep = run_sweep(study, journal, local_crew(processes))
            walls.append(time.monotonic() - started)
            tables.append([{k: v for k, v in row.items() if k != "seconds"} for row in sweep.records()])
        own = time.process_time() - own
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        lines.append(
            f"{processes} processes: {study.size:,} points in {walls[-1]:.1f} s, {own:.2f} CPU-s here; a worker held {most:.0f} MiB at most"
        )
    assert tables[0] == tables[1]
    lines.append(f"two over one: {walls[0] / walls[1]:.2f} times")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
