"""A sweep on one and on two processes.  Prints; never judged by time.

    python -m pytest -m benchmark -s tests/benchmarks/test_sweep_speed.py            DTSIM_POINTS=10000 for more (minutes)

The ratio of the two depends on what else the machine does.  Processor time does so less: the work of one process over that of the
busier of two, both with all that the process does which hands out (load, journal, table).
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from simulator.report.frames import write_table
from simulator.studies import sweep as sweeps
from simulator.studies.crew import local_crew
from simulator.studies.journal import Journal
from simulator.studies.study_file import Study, load_study
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


def _sweep(study: Study, folder: Path, processes: int) -> tuple[dict[str, float], bytes]:
    """Processor seconds and peak bytes, of the workers and here, and the table."""
    plain, used = sweeps._simulated, folder / f"used_{processes}"
    used.mkdir()

    def watched(study: Study, numbers: list[int]) -> Any:
        rows = plain(study, numbers)
        (used / str(os.getpid())).write_text(json.dumps([time.process_time(), peak_bytes()]))
        return rows

    watched.__qualname__, watched.__module__ = plain.__qualname__, plain.__module__  # as it is pickled
    sweeps._simulated = watched
    try:
        own, started = time.process_time(), time.monotonic()
        with Journal(folder / f"{processes}.jsonl") as journal:
            sweep = sweeps.run_sweep(study, journal, local_crew(processes))
            table = Path(write_table(sweep, str(folder / f"{processes}.csv"))).read_bytes()
        wall, own = time.monotonic() - started, time.process_time() - own
    finally:
        sweeps._simulated = plain
    each = [json.loads(file.read_text()) for file in used.iterdir()]
    return {
        "wall": wall,
        "here": own,
        "workers": sum(seconds for seconds, _ in each),
        "busiest": max(seconds for seconds, _ in each),
        "bytes": peak_bytes(),
        "worker_bytes": max(most for _, most in each),
    }, table


@pytest.mark.benchmark
def test_a_sweep_on_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(batches=", ".join(str(64 * (n + 1)) for n in range(max(1, POINTS // 64)))))
    study = load_study(str(path))
    found = []
    for processes in (1, 2):
        with ProcessPoolExecutor(1) as fresh:  # nothing is loaded or computed there yet
            found.append(fresh.submit(_sweep, study, tmp_path, processes).result())
    (one, table), (two, same) = found
    assert table == same
    lines = [
        f"{processes} processes: {study.size:,} points in {used['wall']:.1f} s; CPU: {used['workers']:.1f} s of the workers "
        f"({1e3 * used['workers'] / study.size:.2f} ms/point), {used['busiest']:.1f} s of the busier, {used['here']:.2f} s here; "
        f"peak {used['worker_bytes'] / 2**20:.0f} MiB of a worker, {used['bytes'] / 2**20:.0f} MiB here"
        for processes, used in ((1, one), (2, two))
    ]
    ratio = (one["busiest"] + one["here"]) / (two["busiest"] + two["here"])
    lines.append(f"two over one: {one['wall'] / two['wall']:.2f} times by wall; {ratio:.2f} times by CPU time")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
