"""Ranks that differ and steps that vary: what they cost, over pipeline ranks, microbatches and replicas.  Prints tables."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.hardware.jitter import Jitter
from simulator.hardware.parts import Part
from simulator.job import Job
from simulator.plan.plan import Plan
from simulator.simulation import simulate_job
from simulator.studies.variation import vary
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

JITTER = Jitter(gpus=0.03)
SLOW = Part(replicas=((0, 0),), clock=0.9)


def job(p: int, m: int, d: int, parts: tuple[Part, ...] = (), **plan: Any) -> Job:
    """Llama-3 405B on p x d GPUs of eight-fold tensor parallelism, m microbatches per replica."""
    degrees = {"tensor_parallel": 8, "sequence_parallel": True, "pipeline_parallel": p, "layer_split": None}
    return Job(
        name="benchmark",
        workload=Workload(model=load_model("llama3_1_405b"), sequence_length=4096, global_batch_size=m * d),
        plan=Plan(**{**degrees, **plan}),
        cluster=replace(load_cluster("dgx_h100", 8 * p * d), parts=parts),
        jitter=JITTER,
    )


def seconds(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@pytest.mark.benchmark
def test_cost_over_actions_and_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    """The first column grows with pipeline actions and not with replicas; the second twice as much; the third with both."""
    lines = [
        f"{'p':>4} {'m':>5} {'d':>6} {'actions':>8} {'alike':>9} {'one slow':>9} {'noise':>9}  us per action (and replica)"
    ]
    for p, m, d in [(4, 32, 8), (8, 32, 8), (16, 32, 8), (32, 32, 8), (8, 64, 8), (8, 128, 8), (8, 256, 8),
                    (8, 32, 32), (8, 32, 128), (8, 32, 512)]:  # fmt: skip
        plain, slow = job(p, m, d), job(p, m, d, (SLOW,))
        alike = seconds(lambda job=plain: simulate_job(job))  # type: ignore[misc]
        apart = seconds(lambda job=slow: simulate_job(job))  # type: ignore[misc]
        noise = seconds(lambda job=plain: vary(job, 1))  # type: ignore[misc]
        actions = 2 * p * m
        each = [1e6 * t / actions for t in (alike, apart, noise)]
        lines.append(
            f"{p:4} {m:5} {d:6} {actions:8} {alike:8.4f}s {apart:8.4f}s {noise:8.4f}s"
            f"  {each[0]:6.1f} {each[1]:6.1f} {each[2] / d:6.2f}"
        )
    one, slow = simulate_job(job(8, 32, 8)), simulate_job(job(8, 32, 512, (SLOW,)))
    assert 2 * one.program.ranks == slow.program.ranks
    with capsys.disabled():
        print("\n" + "\n".join(lines))


CASES = {
    "100,352 GPUs, t=8 p=16, 32 microbatches": (16, 32, 784, {}),
    "102,400 GPUs, t=8 p=16 v=7, 64 microbatches": (16, 64, 800, {"chunks_per_rank": 7}),
    "102,400 GPUs, t=8 p=64, 256 microbatches": (64, 256, 200, {}),
    "100,000 GPUs, t=8 FSDP, 4 microbatches": (1, 4, 12500, {"zero_stage": 3, "framework": "torchtitan"}),
}


def one_step(name: str) -> str:
    """One noisy step of a world of 100,000 ranks, in a process of its own: seconds without the first, and its memory."""
    p, m, d, plan = CASES[name]
    world = job(p, m, d, **plan)
    quiet = vary(world, 1).quiet
    start = time.perf_counter()
    found = vary(replace(world, jitter=Jitter(gpus=0.03, compute=0.01)), 1)
    both = time.perf_counter() - start
    start = time.perf_counter()
    vary(world, 1)
    one = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    assert found.times[0] > quiet > 0
    return f"{name:46} {one:7.2f}s {both:7.2f}s {peak:6} MiB"


@pytest.mark.benchmark
def test_a_hundred_thousand_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """One step of the whole, lowered, priced, drawn and run: with one cause (two runs), with two causes (three runs)."""
    lines = [f"{'a step with noise on every rank':46} {'1 cause':>8} {'2 causes':>8} {'memory':>10}"]
    for name in CASES:
        code = f"from tests.benchmarks.test_noise_speed import one_step; print(one_step({name!r}))"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        lines.append(out.stdout.rstrip())
    with capsys.disabled():
        print("\n" + "\n".join(lines))
