"""Gradients that leave for the host as they are made (ZeRO-2 with optimizer states there): what stays, what travels, what waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.costs.price import price
from simulator.engine import run
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES, COPY, Link, Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.report.memory import memory_peaks
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload

GRADIENTS = CATEGORIES.index("gradients")
OFFLOAD: dict[str, Any] = {"framework": "deepspeed", "recompute": "full", "optimizer_offload": 1.0}
SMALL = load_model("llama2_7b")


def predicted(batch: int = 1, model: Model = SMALL, gpus: int = 1, **plan: Any) -> Prediction:
    work = Workload(model=model, sequence_length=1024, global_batch_size=batch, precision="fp16")
    return simulate(work, Plan(**{**OFFLOAD, **plan}), load_cluster("v100_dgx2", gpus))


def moved(program: Program, what: str, name: str) -> float:
    items = [program.items[i] for i in program.item[program.kind == COPY]]
    return sum(i.message for i in items if isinstance(i, Link) and i.collective == what and name in i.name)


def test_thirteen_billion_parameters_fit_on_one_gpu_of_32_gb() -> None:
    """ZeRO-Offload (arXiv 2101.06840, abstract): 13B on one V100 of 32 GB: 16-bit weights, and what a layer needs to run."""
    large = load_model("gpt3_13b")
    there, kept = predicted(model=large, zero_stage=2), predicted(model=large)
    assert there.fits
    assert not kept.fits
    assert there.peak_memory - 2.0 * large.parameters < 5 * 2**30
    layers = round(large.layers * 17e9 / large.parameters)
    assert not predicted(model=large.model_copy(update={"layers": layers}), zero_stage=2).fits, (
        "not whatever is asked for"
    )


def test_no_more_gradients_stand_than_two_buckets_and_a_layer() -> None:
    size = 100e6
    p = predicted(zero_stage=2, bucket_size=size)
    layer = 2.0 * SMALL.parameters / SMALL.layers
    assert 0 < p.memory.by_category[0, GRADIENTS] <= 2 * (size + 2 * layer)
    assert sum(t.bytes for t in p.program.resident[0].tensors if t.category == "gradients") == 0
    half = predicted(zero_stage=2, bucket_size=size, optimizer_offload=0.5)
    kept = sum(t.bytes for t in half.program.resident[0].tensors if t.category == "gradients")
    assert kept == pytest.approx(0.5 * 2.0 * SMALL.parameters, rel=1e-6)


def test_the_link_carries_gradients_down_and_weights_up_and_sums_of_microbatches_both_ways() -> None:
    """ZeRO-Offload, section 3: 4 bytes per parameter and step; a second microbatch is added to the first's sum, on the GPU."""
    whole = 2.0 * SMALL.parameters
    for microbatches in (1, 3):
        program = predicted(microbatches, zero_stage=2).program
        assert moved(program, "to_host", "gradients") == pytest.approx(microbatches * whole, rel=1e-6)
        assert moved(program, "to_device", "gradients") == pytest.approx((microbatches - 1) * whole, rel=1e-6)
        assert moved(program, "to_device", "updated weights") == pytest.approx(whole, rel=1e-6)


def test_copies_run_beside_the_backward_and_without_overlap_they_hold_it_up() -> None:
    beside, after = predicted(zero_stage=2, bucket_size=50e6), predicted()
    assert beside.step_time < after.step_time
    waits = predicted(zero_stage=2, bucket_size=50e6, overlap_gradients=False)
    assert beside.step_time < waits.step_time <= after.step_time + 0.1


def test_replicas_send_their_shards() -> None:
    p = predicted(4, zero_stage=2, gpus=4)
    assert moved(p.program, "to_host", "gradients") == pytest.approx(2.0 * SMALL.parameters / 4, rel=1e-6)
    gradients = [t.name for t in p.program.resident[0].tensors if t.category == "gradients"]
    assert gradients == ["buckets, made whole"]  # DeepSpeed's own; no gradient stands


@pytest.mark.parametrize(
    "plan",
    [
        {"microbatches": 3},
        {"microbatches": 2, "gpus": 2, "overlap_gradients": False},
        {"microbatches": 4, "gpus": 2, "pipeline_parallel": 2},
        {"microbatches": 4, "gpus": 4, "pipeline_parallel": 2, "schedule": "zb_h1", "activation_offload": 0},
        {"microbatches": 8, "gpus": 4, "pipeline_parallel": 2, "chunks_per_rank": 2, "activation_offload": 3},
    ],
)
def test_both_engines_agree_and_everything_is_freed(plan: dict[str, Any]) -> None:
    gpus = plan.pop("gpus", 1)
    replicas = gpus // plan.get("pipeline_parallel", 1)
    work = Workload(
        model=SMALL, sequence_length=1024, global_batch_size=plan.pop("microbatches") * replicas, precision="fp16"
    )
    program = lower(work, Plan(**{**OFFLOAD, "recompute": "none"}, zero_stage=2, **plan), gpus)
    verify(program)
    prices = price(program, load_cluster("v100_dgx2", gpus))
    one, two = run(program, prices), run(program, prices, "simpy")
    np.testing.assert_allclose(one.end, two.end, rtol=1e-9)
    after = memory_peaks(program, one, (one.makespan, one.makespan + 1.0))
    np.testing.assert_allclose(after.total, [sum(t.bytes for t in e.tensors) for e in program.resident], rtol=1e-9)
    assert render_text(parse_text(render_text(program))) == render_text(program)


@pytest.mark.parametrize(
    ("plan", "values", "way"),
    [
        ({"zero_stage": 2, "optimizer_offload": 0.0}, "zero_stage = 2", "optimizer_offload"),
        ({"zero_stage": 1}, "zero_stage = 1", "zero_stage = 0"),
        ({"zero_stage": 3, "framework": "pytorch_fsdp"}, "zero_stage = 3", "zero_stage = 0"),
        ({"bucket_size": 1e8}, "data_parallel = 1", "leave out"),
        ({"zero_stage": 2, "overlap_parameters": True}, "data_parallel = 1", "leave overlap_parameters out"),
    ],
)
def test_refused_where_one_replica_has_nothing_to_shard_or_to_send(plan: dict[str, Any], values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        predicted(**plan)
    assert values in str(caught.value)
    assert way in str(caught.value)
