"""A prediction: every number can answer why."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.engine import run
from simulator.hardware.cluster import load_cluster
from simulator.job import job_from_names
from simulator.plan.plan import Plan
from simulator.program.critical import critical_path
from simulator.program.prices import Prices
from simulator.report.prediction import QUANTILE, WHOLE_RUNS, Prediction
from simulator.report.summary import headline, sure_section
from simulator.simulation import simulate, simulate_job
from simulator.workload.model import load_model
from simulator.workload.workload import Workload


def predict(
    name: str, cluster: str, gpus: int, batch: int, length: int, engine: str = "compiled", **plan: Any
) -> Prediction:
    work = Workload(model=load_model(name), sequence_length=length, global_batch_size=batch)
    return simulate(work, Plan(**plan), load_cluster(cluster, gpus), engine)


PLANS = {
    "pipeline": (
        "gpt3_175b",
        "selene",
        64,
        64,
        2048,
        {"tensor_parallel": 8, "pipeline_parallel": 8, "framework": "megatron_lm"},
    ),
    "interleaved": (
        "gpt3_175b",
        "selene",
        128,
        64,
        2048,
        {
            "tensor_parallel": 8,
            "pipeline_parallel": 8,
            "chunks_per_rank": 3,
            "sequence_parallel": True,
            "zero_stage": 1,
        },
    ),
    "fsdp": ("llama3_8b", "h100_x8", 8, 16, 8192, {"zero_stage": 3, "framework": "torchtitan"}),
    "replicas": ("gpt2_124m", "a100_x8", 2, 64, 1024, {"framework": "pytorch_ddp", "microbatch_size": 16}),
    "zero2": ("llama2_7b", "dgx_a100", 16, 64, 4096, {"zero_stage": 2, "recompute": "full"}),
    "chimera": (
        "gpt2_64l",
        "a100_x8",
        8,
        16,
        632,
        {"pipeline_parallel": 4, "schedule": "chimera", "framework": "pytorch_ddp", "recompute": "full"},
    ),
}


@pytest.fixture(scope="module", params=list(PLANS))
def case(request: pytest.FixtureRequest) -> tuple[tuple[Any, ...], Prediction]:
    *where, plan = PLANS[request.param]
    return (where, plan), predict(*where, **plan)


def test_the_breakdown_sums_to_the_step(case: tuple[Any, Prediction]) -> None:
    prediction = case[1]
    assert sum(prediction.breakdown.values()) == pytest.approx(prediction.step_time, rel=1e-9)
    assert (prediction.rank_breakdown >= -1e-12).all()
    np.testing.assert_allclose(prediction.rank_breakdown.sum(axis=1), prediction.step_time, rtol=1e-9)


def test_memory_categories_sum_and_the_tensors_at_the_peak_make_it_up(case: tuple[Any, Prediction]) -> None:
    memory = case[1].memory
    for rank in range(len(memory.total)):
        assert memory.total[rank] == pytest.approx(sum(s.bytes for s in memory.live(rank)), rel=1e-9)
        assert memory.allocated[rank] < memory.total[rank]


def test_both_engines_agree(case: tuple[Any, Prediction]) -> None:
    (where, plan), compiled = case
    simpy = predict(*where, engine="simpy", **plan)
    np.testing.assert_allclose(compiled.trace.end, simpy.trace.end, rtol=1e-9, atol=1e-12)


def test_json_is_whole_and_finite(case: tuple[Any, Prediction]) -> None:
    data = json.loads(json.dumps(case[1].to_dict(), allow_nan=False))
    assert 1 == data["schema_version"]
    assert data["step_time_s"]["low"] < data["step_time_s"]["value"] < data["step_time_s"]["high"]
    assert {"tp", "cp", "ep", "pp", "dp"} == set(data["exposed_communication_s"])
    assert sum(data["breakdown_s"].values()) == pytest.approx(data["step_time_s"]["value"], rel=1e-9)
    for peak in data["peak_memory_bytes"]:
        parts = {k: v for k, v in peak.items() if k not in ("pipeline_rank", "total", "allocated")}
        assert peak["total"] == pytest.approx(sum(parts.values()), rel=1e-9)
    assert {"version", "engine", "calibration"} <= set(data["provenance"])


def test_mfu_counts_model_flops_and_hfu_adds_recompute() -> None:
    """Megatron's checkpoints run a whole layer again; PyTorch's stop before its last product."""
    plain, full, stops = (
        predict("llama2_7b", "a100_x8", 8, 8, 4096, zero_stage=3, framework=framework, recompute=recompute)
        for framework, recompute in (("megatron_core", "none"), ("megatron_core", "full"), ("pytorch_fsdp", "full"))
    )
    assert plain.mfu == pytest.approx(plain.hfu)
    assert full.hfu / full.mfu == pytest.approx(4 / 3, rel=0.05)
    assert 1.2 < stops.hfu / stops.mfu < full.hfu / full.mfu
    assert full.mfu < plain.mfu


def test_the_band_comes_from_the_classes_on_the_critical_path() -> None:
    """sigma^2 = sum of (share x sigma)^2 over classes + that of whole runs, which differs by side (design 5b O)."""
    prediction = predict("gpt3_175b", "selene", 64, 64, 2048, tensor_parallel=8, pipeline_parallel=8)
    slower, faster = (math.sqrt(sum(s**2 for s in prediction.spreads(side).values())) for side in (True, False))
    assert prediction.high == pytest.approx(prediction.step_time * math.exp(QUANTILE * slower), rel=1e-12)
    assert prediction.low == pytest.approx(prediction.step_time * math.exp(-QUANTILE * faster), rel=1e-12)
    assert {WHOLE_RUNS} == set(prediction.spreads(True)) - set(prediction.sigma_classes)


def test_the_band_agrees_with_sampled_prices_through_the_engine() -> None:
    """32 columns of prices, each class scaled by its own draw: the spread is that of the formula within a tenth of the width."""
    prediction = predict("gpt3_175b", "selene", 64, 64, 2048, tensor_parallel=8, pipeline_parallel=8)
    program, prices = prediction.program, replace(prediction.prices, slowdown=np.ones_like(prediction.prices.slowdown))
    draws = np.random.default_rng(7).standard_normal((32, len(prices.classes)))
    draws = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    total = (prices.occupancy + prices.latency)[None, :]
    factor = (prices.class_share[None] * np.exp(draws * prices.sigma)[:, None, :]).sum(axis=2) / np.where(
        total > 0, total, 1
    )
    drawn = zip(prices.occupancy * factor, prices.latency * factor, strict=True)
    spans = [run(program, Prices.plain(*times)).makespan for times in drawn]
    sampled = np.log(spans).std()
    formula = math.sqrt(sum(s**2 for s in prediction.sigma_classes.values()))
    width = 2 * QUANTILE * formula
    assert abs(2 * QUANTILE * sampled - width) < 0.1 * max(width, 2 * QUANTILE * sampled) + 0.004


def test_the_critical_path_spans_the_step() -> None:
    prediction = predict("gpt3_175b", "selene", 64, 64, 2048, tensor_parallel=8, pipeline_parallel=8)
    path = critical_path(prediction.program, prediction.prices, prediction.trace)
    assert prediction.trace.end[path[-1]] == prediction.step_time
    assert (np.diff(prediction.trace.end[path]) >= 0).all()


def test_an_uncalibrated_cluster_works_at_once_and_says_so() -> None:
    known = predict("llama3_8b", "h100_x8", 8, 8, 8192, zero_stage=3, framework="torchtitan")
    new = predict("llama3_8b", "ascend_910b_x8", 8, 8, 8192, zero_stage=3, framework="torchtitan")
    assert "gemm:bf16" in new.provenance["calibration"]["uncalibrated"]
    assert any("its machine is assumed, or in no measured run" in line for line in sure_section(new).lines)
    assert new.high / new.low > known.high / known.low


def test_one_gpu_needs_no_measured_network() -> None:
    alone = predict("llama3_8b", "h100_x8", 1, 1, 4096, zero_stage=0)
    assert alone.provenance["calibration"]["uncalibrated"] == []


def test_too_much_memory_is_a_verdict_not_an_error() -> None:
    prediction = predict("gpt3_175b", "a100_x8", 8, 8, 2048, tensor_parallel=8)
    assert not prediction.fits
    assert prediction.peak_memory > prediction.capacity


def test_a_model_of_experts_is_a_kind_of_run_of_its_own_that_is_known_less_well() -> None:
    dense = predict("llama3_8b", "h100_x8", 8, 8, 4096, zero_stage=1)
    sparse = predict("mixtral_8x7b", "h100_x8", 8, 8, 4096, zero_stage=1, expert_parallel=8)
    assert ("replicas", "experts") == (dense.provenance["kind_of_run"], sparse.provenance["kind_of_run"])
    assert sparse.whole_runs.median > dense.whole_runs.median


@pytest.mark.parametrize(
    ("settings", "split"),
    [
        (["plan.expert_parallel=8", "plan.context_parallel=4"], "cp 4 x dp 4, experts over 8;"),
        (["plan.expert_parallel=4", "plan.context_parallel=4"], "cp 4 x dp 4, experts over 4;"),
        (["plan.expert_parallel=2", "plan.context_parallel=4"], "cp 4 x dp 4, experts over 2;"),
        (["plan.expert_parallel=8", "plan.zero_stage=3", "plan.shard_size=8"], "dp 8 x replica 2, experts over 8;"),
    ],
)
def test_the_headline_has_the_plans_own_degrees(settings: list[str], split: str) -> None:
    job = job_from_names("mixtral_8x7b", "dgx_h100", ["cluster.nodes=2", *settings])
    assert split in headline(simulate_job(job), "experts").lines[1]


def test_utilisation_beyond_all_is_explained() -> None:
    """Scores that a mask spares count as if they were computed: a long sequence that is recomputed goes beyond the peak."""
    settings = [
        "workload.sequence_length=1048576",
        "plan.context_parallel=64",
        "plan.zero_stage=3",
        "plan.recompute=full",
    ]
    prediction = simulate_job(job_from_names("llama3_8b", "dgx_h100", settings))
    assert prediction.mfu < 1.0 < prediction.hfu
    assert "masks and windows spare" in " ".join(headline(prediction, "a job").lines)


def test_a_band_that_is_wide_for_its_code_says_where_to_name_it() -> None:
    settings = ["plan.zero_stage=3", "workload.global_batch_size=8"]
    unnamed, named = (
        simulate_job(job_from_names("llama3_8b", "h100_x8", [*settings, *more]))
        for more in ([], ["plan.framework=megatron_core"])
    )
    assert named.high / named.step_time < unnamed.high / unnamed.step_time
    said = ["\n".join(sure_section(one).lines) for one in (unnamed, named)]
    assert ["plan.framework says which code it is" in text for text in said] == [True, False]
