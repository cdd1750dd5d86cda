"""A plan that was predicted before finds all its kernels priced: no pass writes down anew what it wrote down for another plan."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.costs import items, tables
from simulator.hardware.cluster import load_cluster
from simulator.plan.plan import Plan
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

PLANS: dict[str, dict[str, Any]] = {
    "buckets": {"zero_stage": 1, "tensor_parallel": 2, "pipeline_parallel": 2},
    "units of FSDP2": {"framework": "torchtitan", "zero_stage": 3, "pipeline_parallel": 2},
    "ZeRO++": {
        "framework": "deepspeed",
        "zero_stage": 3,
        "quantized_weights": True,
        "quantized_gradients": True,
        "secondary_shard_size": 8,
    },
    "updates on the host": {"zero_stage": 1, "optimizer_offload": 1.0, "pipeline_parallel": 2},
}


@pytest.mark.parametrize("name", PLANS)
def test_what_was_priced_once_is_known(name: str) -> None:
    work = Workload(model=load_model("gpt3_1_3b"), sequence_length=1024, global_batch_size=64)
    plan, cluster = Plan(**PLANS[name]), load_cluster("dgx_h100", 16)
    first = simulate(work, plan, cluster)
    before = tables._price_table.cache_info().misses, items._segment.cache_info().misses
    again = simulate(work, plan, cluster)
    assert (tables._price_table.cache_info().misses, items._segment.cache_info().misses) == before
    assert (first.step_time, first.peak_memory) == (again.step_time, again.peak_memory)
