"""A program opened up to operators takes the same time as its segments (design 5b A)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.costs.price import price
from simulator.engine import run
from simulator.errors import ProgramError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.spec import verify
from simulator.report.breakdown import breakdown
from simulator.report.memory import memory_peaks
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.differential.expanded import expand_operators

PLANS: dict[str, dict[str, Any]] = {
    "pipeline": {"tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True, "recompute": "full"},
    "interleaved": {"pipeline_parallel": 4, "chunks_per_rank": 2, "zero_stage": 1, "p2p": "blocking"},
    "fsdp": {"zero_stage": 3, "framework": "torchtitan"},
    "buckets": {"framework": "pytorch_ddp", "bucket_size": 5e7},
}


@pytest.mark.parametrize("plan", list(PLANS))
def test_expanded_and_segmented_runs_agree(plan: str) -> None:
    work = Workload(model=load_model("gpt2_355m"), sequence_length=512, global_batch_size=16)
    cluster = load_cluster("a100_x8", 8)
    program = lower(work, Plan(**PLANS[plan]), 8)
    prices = price(program, cluster)
    plain = replace(prices, slowdown=np.ones_like(prices.slowdown))
    opened, its_prices = expand_operators(program, cluster)
    verify(opened)
    one, two = run(program, plain), run(opened, its_prices)
    assert opened.size > 5 * program.size
    assert one.makespan == pytest.approx(two.makespan, rel=1e-9)
    np.testing.assert_allclose(
        breakdown(program, plain, one), breakdown(opened, its_prices, two), rtol=1e-6, atol=1e-12
    )
    np.testing.assert_allclose(memory_peaks(program, one).total, memory_peaks(opened, two).total, rtol=1e-12)
    assert run(program, prices).makespan <= two.makespan * prices.slowdown.max()


def test_operators_carry_their_names() -> None:
    work = Workload(model=load_model("gpt2_355m"), sequence_length=512, global_batch_size=4)
    opened, _ = expand_operators(lower(work, Plan(), 1), load_cluster("a100_x8", 1))
    names = {item.name for item in opened.items}
    assert {"qkv", "attention", "mlp down input gradient", "cross entropy", "adam"} <= names


def test_too_many_rows_are_refused() -> None:
    work = Workload(model=load_model("gpt3_175b"), sequence_length=2048, global_batch_size=2048)
    with pytest.raises(ProgramError, match="fewer microbatches"):
        expand_operators(lower(work, Plan(pipeline_parallel=8), 8), load_cluster("a100_x8", 8))
