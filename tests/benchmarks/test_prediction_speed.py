"""Whole predictions per second: lower, verify, price, run, measure.  Prints a table; never judged by time."""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.plan.plan import Plan
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

CASES: dict[str, tuple[str, int, int, str, int, dict[str, Any]]] = {
    "GPT-3 175B, 512 A100, t=8 p=8 v=3, 64 microbatches": (
        "gpt3_175b",
        2048,
        512,
        "selene",
        512,
        {
            "tensor_parallel": 8,
            "pipeline_parallel": 8,
            "chunks_per_rank": 3,
            "sequence_parallel": True,
            "recompute": "selective",
            "framework": "megatron_lm",
        },
    ),
    "1T, 512 A100, t=8 p=64, 512 microbatches": (
        "megatron_1008b",
        2048,
        512,
        "selene",
        512,
        {
            "tensor_parallel": 8,
            "pipeline_parallel": 64,
            "sequence_parallel": True,
            "recompute": "selective",
            "framework": "megatron_lm",
        },
    ),
    "Llama-3 405B, 16,384 H100, t=8 p=16 v=7": (
        "llama3_1_405b",
        8192,
        2048,
        "meta_h100_roce",
        16384,
        {
            "tensor_parallel": 8,
            "pipeline_parallel": 16,
            "chunks_per_rank": 7,
            "sequence_parallel": True,
            "zero_stage": 1,
        },
    ),
}


def run_case(case: tuple[str, int, int, str, int, dict[str, Any]], engine: str = "compiled", **more: Any) -> float:
    """Seconds of one whole prediction, with all that `dtsim run --format json` says of it."""
    model, length, batch, cluster, gpus, plan = case
    work = Workload(model=load_model(model), sequence_length=length, global_batch_size=batch)
    where = load_cluster(cluster, gpus)
    start = time.perf_counter()
    prediction = simulate(work, Plan(**{**plan, **more}), where, engine)
    assert prediction.to_dict()["breakdown_s"]
    return time.perf_counter() - start


@pytest.mark.benchmark
def test_whole_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    """Warm: the same plan again.  New plan: another microbatch count is lowered from templates that are already priced."""
    lines = [f"{'whole prediction, one core':52} {'warm':>9} {'simpy':>9} {'ratio':>7}"]
    for name, case in CASES.items():
        run_case(case)
        warm = statistics.median(run_case(case) for _ in range(9))
        simpy = run_case(case, "simpy")
        lines.append(f"{name:52} {warm:8.4f}s {simpy:8.3f}s {simpy / warm:6.0f}x")
        assert simpy > warm
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines.append(f"peak memory of this process: {peak // 1024} MiB")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
