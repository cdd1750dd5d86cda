"""Kernels captured in CUDA graphs: small work is no longer bound by the host's launches; experts that drop nothing stay outside."""

from __future__ import annotations

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.plan.plan import Plan
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload


def predicted(model: Model, graphs: bool, length: int = 512, **plan: object) -> Prediction:
    work = Workload(model=model, sequence_length=length, global_batch_size=32)
    return simulate(work, Plan(**{"cuda_graphs": graphs, **plan}), load_cluster("h100_x8", 8))


def launches(prediction: Prediction) -> int:
    """Launches of one layer's forward and backward."""
    found = {id(table): table for item in prediction.program.items for table, _ in getattr(item, "pieces", ())}
    return sum(int(table.launches.sum()) for table in found.values() if "layer" in table.name)


def test_small_work_is_freed_from_the_host() -> None:
    small = load_model("gpt2_124m")
    bound, free = (predicted(small, graphs, tensor_parallel=4) for graphs in (False, True))
    assert 2 == launches(free) < launches(bound)
    assert bound.provenance["host_bound"]
    assert not free.provenance["host_bound"]
    assert free.step_time < 0.9 * bound.step_time


def test_large_work_was_never_bound_by_it() -> None:
    large = load_model("llama3_8b")
    plan = {"tensor_parallel": 8, "sequence_parallel": True, "microbatch_size": 4}
    bound, free = (predicted(large, graphs, length=8192, **plan) for graphs in (False, True))
    assert free.step_time == pytest.approx(bound.step_time, rel=0.01)


def test_experts_that_drop_no_tokens_stay_outside() -> None:
    dropless = load_model("qwen3_30b_a3b")
    dropping = dropless.model_copy(update={"capacity_factor": 1.0})
    plan = {"expert_parallel": 8, "zero_stage": 1}
    some, all_in = (launches(predicted(model, True, **plan)) for model in (dropless, dropping))
    assert 2 == all_in < some < launches(predicted(dropless, False, **plan))
