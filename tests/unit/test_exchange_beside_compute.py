"""Exchanges between experts beside the compute of another microbatch: what they take, spare and keep."""

from __future__ import annotations

import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.plan.plan import Plan
from simulator.simulation import simulate
from simulator.studies.schedule_figures import schedule_figures
from simulator.workload.model import load_model
from simulator.workload.workload import Workload


def workload(name: str, batch: int, length: int) -> Workload:
    return Workload(model=load_model(name), sequence_length=length, global_batch_size=batch)


def test_a_fused_pair_hides_the_exchange_under_compute() -> None:
    work, cluster = workload("deepseek_v2_lite", 32, 4096), load_cluster("dgx_h100", 16)
    plan = {"pipeline_parallel": 2, "chunks_per_rank": 2, "expert_parallel": 8}
    fused, plain = (simulate(work, Plan(schedule=s, **plan), cluster) for s in ("dualpipev", "zbv"))
    assert {True} == {bool((p.rank_breakdown >= -1e-12).all()) for p in (fused, plain)}
    assert fused.breakdown["ep"] < plain.breakdown["ep"]


@pytest.mark.parametrize(
    ("framework", "graphs", "measured"),
    [("megatron_bridge", (), 31.31), ("megatron_bridge_hybridep", ("moe_router", "moe_preprocess"), 20.99)],
)
def test_exchanges_beside_another_microbatch_take_the_measured_time(
    framework: str, graphs: tuple, measured: float
) -> None:
    """Qwen3-30B-A3B on 16 H100, by all_to_all and by HybridEP; what is spared of the exchange the host does not spare.

    Source: NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-expert-parallel-overlap/SKILL.md.
    """
    work = Workload(model=load_model("qwen3_30b_a3b"), sequence_length=4096, global_batch_size=1024)
    plan = {"zero_stage": 1, "expert_parallel": 16, "framework": framework, "cuda_graphs": graphs}
    cluster = load_cluster("dgx_h100", 16)
    plain, beside = (simulate(work, Plan(**plan, schedule=s), cluster) for s in (None, "combined_1f1b"))
    assert beside.step_time == pytest.approx(measured, rel=0.09)
    spared, waits = (
        (plain.breakdown["ep"] - beside.breakdown["ep"]),
        (beside.breakdown["host"] - plain.breakdown["host"]),
    )
    assert spared - waits == pytest.approx(plain.step_time - beside.step_time, rel=0.01)
    assert 0 < waits < spared  # less to do for the GPU, more than before for the host


def test_combined_1f1b_has_one_more_forward_in_flight_and_costs_no_bubble() -> None:
    for ranks, microbatches, chunks in ((4, 16, 3), (2, 4, 2)):
        plain, fused = (
            schedule_figures(name, ranks, microbatches, chunks) for name in ("interleaved_1f1b", "combined_1f1b")
        )
        assert plain.makespan == pytest.approx(fused.makespan)
        assert fused.peak_activations[0] > plain.peak_activations[0]
        assert fused.peak_activations[0] - plain.peak_activations[0] <= 1 / chunks + 1e-9
    work, cluster = workload("deepseek_v2_lite", 32, 4096), load_cluster("dgx_h100", 16)
    with pytest.raises(PlanError, match="two or more chunks"):
        simulate(work, Plan(schedule="combined_1f1b", pipeline_parallel=2, expert_parallel=8), cluster)
