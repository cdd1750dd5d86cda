"""A step with more rows than a machine holds is refused before it is built."""

from __future__ import annotations

import time

import pytest

from simulator.errors import PlanError
from simulator.job import load_job
from simulator.lowering import lower
from simulator.simulation import simulate_job


@pytest.mark.parametrize(
    ("microbatches", "rule"),
    [
        (40_000, "at most 6,000,000 rows"),
        (400_000, "at most 6,000,000 rows"),
        (10**7, "at most 5000000 pipeline actions"),
    ],
)
def test_too_many_microbatches_under_zero_3(microbatches: int, rule: str) -> None:
    job = load_job(
        "llama3_8b_fsdp_8xh100", [f"workload.global_batch_size={8 * microbatches}", "plan.microbatch_size=1"]
    )
    begun = time.process_time()
    with pytest.raises(PlanError, match=f"{rule}.*Way out: (fewer or larger microbatches|a larger microbatch_size)"):
        simulate_job(job)
    assert time.process_time() - begun < 10


def test_what_all_layers_let_go_at_once_is_no_list_for_each_of_them() -> None:
    """The gradients of all layers go at the end of the update: joined two by two, every list on the way would be kept."""
    job = load_job("llama_7b_4x4090", ["model.layers=400"])
    effects = lower(job.workload, job.plan, job.cluster.world_size).effects
    assert sum(len(effect.tensors) for effect in effects) < 2 * len(effects)
    assert max(len(effect.tensors) for effect in effects) < 30
