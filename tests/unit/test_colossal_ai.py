"""The profile of Colossal-AI: what the defaults of its plugin say, in a plan that leaves them open."""

from __future__ import annotations

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload


def test_a_plan_takes_what_the_plugin_leaves_as_it_is() -> None:
    work = Workload(model=load_model("gpt2_124m"), sequence_length=1024, global_batch_size=32)
    found = resolve(work, Plan(tensor_parallel=2, zero_stage=2, microbatch_size=4, framework="colossalai"), 8)
    assert ("colossal_ai", 50304, False) == (found.framework.name, found.vocabulary, found.clip_gradients)
    assert 12 * 2**20 * 2 == found.bucket_size
    assert load_framework("Colossal-AI") is load_framework("colossal_ai")


@pytest.mark.parametrize(
    "plan",
    [
        {"zero_stage": 1},
        {"context_parallel": 4, "context_parallel_kind": "ring_self_attention", "attention": "unfused"},
        {"tensor_parallel": 4, "sequence_parallel": True, "pipeline_parallel": 2},
    ],
)
def test_its_ways_to_split_run(plan: dict[str, object]) -> None:
    work = Workload(model=load_model("gpt2_124m"), sequence_length=1024, global_batch_size=32)
    found = simulate(work, Plan(microbatch_size=4, framework="colossal_ai", **plan), load_cluster("dgx_a100", 8))  # type: ignore[arg-type]
    assert 0 < found.step_time < 10
