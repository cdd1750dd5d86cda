"""How the time of an answer grows with what is asked: a table with the exponent beside each.  Prints; never judged by time."""

from __future__ import annotations

import csv
import io
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.accuracy.validate import load_table
from simulator.job import job_from_names, load_job
from simulator.simulation import simulate_job
from simulator.studies.schedule_figures import schedule_figures
from simulator.studies.variation import vary
from tests.rows import ROW

BASE = ["cluster.gpus=512"]
SHARDED = ["plan.zero_stage=3", "plan.framework=torchtitan"]


def run(name: str, *settings: str) -> None:
    simulate_job(load_job(name, list(settings)))


def rows(count: int, folder: Path) -> None:
    row = ROW | {"step_time_s": "5", "quality": "A"}
    text = io.StringIO()
    out = csv.DictWriter(text, list(row))
    out.writeheader()
    out.writerows({**row, "case_id": f"case-{i}", "gbs": str(64 + 8 * (i % 50))} for i in range(count))
    path = folder / f"{count}.csv"
    path.write_text(text.getvalue())
    list(load_table(str(path), "runs").outcomes(True))


GROWS: dict[str, tuple[tuple[int, ...], Callable[[int, Path], Any]]] = {
    "GPUs, GPT-3 on selene": (
        (1024, 16384, 262144, 4194304),
        lambda n, _: run("gpt3_175b", f"cluster.gpus={n}", f"workload.global_batch_size={n // 4}"),
    ),
    "GPUs, Llama-3 8B under ZeRO-3": (
        (64, 16384, 1048576),
        lambda n, _: run("llama3_8b_fsdp_8xh100", "cluster.name=dgx_h100", f"cluster.gpus={n}", f"plan.data_parallel={n}",
                      f"workload.global_batch_size={n}"),
    ),
    "GPUs, Mixtral with experts on 8": (
        (64, 16384, 1048576),
        lambda n, _: simulate_job(job_from_names("mixtral_8x7b", "dgx_h100", [
            f"cluster.gpus={n}", f"workload.global_batch_size={n}", "plan.expert_parallel=8", "plan.zero_stage=1",
        ])),
    ),
    "GPUs with noise, 4 samples": (
        (1024, 16384, 262144),
        lambda n, _: vary(load_job("gpt3_175b", [
            f"cluster.gpus={n}", f"workload.global_batch_size={n // 4}", "jitter.compute=0.02",
        ]), 4),
    ),
    "experts of a layer": (
        (8, 128, 2048),
        lambda n, _: simulate_job(job_from_names("mixtral_8x7b", "dgx_h100", [
            "cluster.gpus=64", "workload.global_batch_size=64", "plan.expert_parallel=8", "plan.zero_stage=1", f"model.experts={n}",
        ])),
    ),
    "microbatches, p = 8": (
        (64, 512, 4096, 32768),
        lambda n, _: run("gpt3_175b", "cluster.gpus=64", f"workload.global_batch_size={n}"),
    ),
    "microbatches under ZeRO-3": (
        (8, 64, 512, 4096),
        lambda n, _: run(
            "llama3_8b_fsdp_8xh100", f"workload.global_batch_size={8 * n}", "plan.microbatch_size=1"
        ),
    ),
    "pipeline ranks": (
        (4, 16, 64),
        lambda n, _: run(
            "gpt3_175b", "plan.schedule=1f1b", "plan.chunks_per_rank=1", f"plan.pipeline_parallel={n}", f"cluster.gpus={8 * n}",
            "workload.global_batch_size=256", "model.layers=192",
        ),
    ),
    "layers, p = 8": ((96, 768, 6144), lambda n, _: run("gpt3_175b", f"model.layers={n}", *BASE, "workload.global_batch_size=256")),
    "layers under ZeRO-3": ((32, 256, 2048), lambda n, _: run("llama3_8b_fsdp_8xh100", f"model.layers={n}")),
    "tokens of a sequence": ((2048, 16384, 131072), lambda n, _: run("llama3_8b_fsdp_8xh100", f"workload.sequence_length={n}")),
    "steps with noise": ((10, 100, 1000), lambda n, _: vary(load_job("gpt2_124m_2gpu", ["jitter.compute=0.02"]), n)),
    "microbatches of a schedule, p = 16": ((64, 512, 4096), lambda n, _: schedule_figures("1f1b", 16, n)),
    "rows of a table": ((5, 50, 500), rows),
}  # fmt: skip


@pytest.mark.benchmark
def test_growth(tmp_path: Path) -> None:
    print(f"\n{'grows':36} {'from':>8} {'to':>9} {'first':>9} {'last':>9} {'exponent':>9} {'peak RSS':>9}")
    for name, (sizes, work) in GROWS.items():
        work(sizes[0], tmp_path)
        taken = []
        for size in sizes:
            begun = time.perf_counter()
            work(size, tmp_path)
            taken.append(time.perf_counter() - begun)
        exponent = math.log(taken[-1] / taken[-2]) / math.log(sizes[-1] / sizes[-2])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(
            f"{name:36} {sizes[0]:8} {sizes[-1]:9} {taken[0]:8.3f}s {taken[-1]:8.3f}s {exponent:9.2f} {peak:6} MiB",
            flush=True,
        )
        assert all(seconds > 0 for seconds in taken)
