"""Shards of ZeRO-3's weights on the host: how much memory they free, what is copied when, and what waits for it."""

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
from simulator.program.program import COLLECTIVE, COPY, Link, Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.report.memory import memory_peaks
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

LLAMA = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=16)
SHARD = LLAMA.model.parameters / 8
PLANS: dict[str, dict[str, Any]] = {
    "deepspeed": {"framework": "deepspeed"},
    "torchtitan": {"framework": "torchtitan"},
    "megatron": {"framework": "megatron_core", "clip_gradients": False},
    "secondary shards": {"framework": "megatron_core", "secondary_shard_size": 4},
    "kept": {"framework": "torchtitan", "reshard_after_forward": False},
    "pipeline": {"framework": "torchtitan", "pipeline_parallel": 2, "schedule": "1f1b"},
    "units of four": {"framework": "megatron_core", "fsdp_unit": 4, "fsdp_prefetch": 2},
    "activations": {"framework": "torchtitan", "activation_offload": 20},
    "activations, in a pipeline": {
        "framework": "deepspeed",
        "activation_offload": 3,
        "pipeline_parallel": 4,
        "fsdp_prefetch": 2,
    },
    "chimera": {"framework": "megatron_core", "pipeline_parallel": 2, "schedule": "chimera"},
}


def predicted(part: float = 1.0, **plan: Any) -> Prediction:
    work = plan.pop("work", LLAMA)
    return simulate(work, Plan(zero_stage=3, parameter_offload=part, **plan), load_cluster("dgx_h100", 8))


def copied(program: Program, what: str, name: str) -> list[float]:
    items = [program.items[i] for i in program.item[program.kind == COPY]]
    return [i.message for i in items if isinstance(i, Link) and i.collective == what and name in i.name]


@pytest.mark.parametrize("plan", PLANS)
def test_memory_falls_by_the_shard_and_time_never_falls(plan: str) -> None:
    """Resident weights go to the host byte for byte; the peak falls by less, for shards pass through the GPU."""
    before, after = predicted(0.0, **PLANS[plan]), predicted(1.0, **PLANS[plan])
    weights = [{t.name: t.bytes for t in p.program.resident[0].tensors}.get("weights", 0.0) for p in (before, after)]
    (host,) = (t.bytes for t in after.program.host_resident[0].tensors if t.category == "weights")
    assert weights == [pytest.approx(host), pytest.approx(0.0, abs=1.0)]
    most = max(t.bytes for e in after.program.host_resident for t in e.tensors if t.category == "weights")
    assert before.peak_memory - most - 1 <= after.peak_memory < before.peak_memory - 0.6 * host
    assert after.step_time >= before.step_time
    assert after.host_memory >= host


def test_half_of_the_weights_takes_half() -> None:
    none, half, full = (predicted(part, framework="deepspeed") for part in (0.0, 0.5, 1.0))
    assert half.host_memory == pytest.approx(full.host_memory / 2)
    assert none.step_time <= half.step_time <= full.step_time
    assert sum(copied(half.program, "to_device", "shard")) == pytest.approx(
        sum(copied(full.program, "to_device", "shard")) / 2
    )


def test_every_gather_waits_for_a_copy_of_its_shard() -> None:
    program = predicted(framework="torchtitan").program
    names = [program.items[i].name for i in program.item]
    gathers = [
        n
        for n in np.flatnonzero(program.kind == COLLECTIVE).tolist()
        if getattr(program.items[program.item[n]], "collective", "") == "all_gather"
    ]
    for row in gathers:
        after = program.after[program.after_offsets[row] : program.after_offsets[row + 1]].tolist()
        (copy,) = (n for n in after if program.kind[n] == COPY)
        assert names[copy] == names[row].replace("all_gather", "to_device shard of")
        size, whole = program.items[program.item[copy]].message, program.items[program.item[row]].message
        assert size == pytest.approx(whole / 8 * 2), "fp32 of an eighth, gathered as bf16"
    up = copied(program, "to_device", "shard")
    assert len(up) == len(gathers)
    assert copied(program, "to_host", "updated shards") == [pytest.approx(4 * SHARD, rel=1e-3)]


def test_secondary_shards_serve_the_backward_without_a_copy() -> None:
    plain, second = predicted(framework="megatron_core"), predicted(**PLANS["secondary shards"])
    assert sum(copied(plain.program, "to_device", "shard")) > 1.9 * sum(copied(second.program, "to_device", "shard"))


@pytest.mark.parametrize(("part", "down", "back"), [(0.0, 1.0, 0.0), (0.4, 0.6, 0.0), (1.0, 0.0, 0.0)])
def test_what_the_cpu_updates_where_it_lives_is_not_copied(part: float, down: float, back: float) -> None:
    program = predicted(framework="deepspeed", optimizer_offload=part).program
    assert sum(copied(program, "to_host", "updated shards")) == pytest.approx(2 * down * SHARD, rel=1e-3)
    assert sum(copied(program, "to_device", "updated weights")) == pytest.approx(2 * back * SHARD, rel=1e-3)
    gradients = sum(copied(program, "to_host", "gradients"))
    assert (gradients > 0) == (part > 0), "gradients' shards go down to the CPU that updates with them"


@pytest.mark.parametrize("framework", ["deepspeed", "pytorch_fsdp"])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_shards_of_gradients_that_the_cpu_updates_with_do_not_stay(framework: str, part: float) -> None:
    """Two microbatches: what the GPU keeps of them between the first backward and the update is the rest."""
    kept, left = (_gradients(predicted(framework=framework, optimizer_offload=share)) for share in (0.0, part))
    assert kept > 0
    assert left == pytest.approx((1.0 - part) * kept)


def _gradients(found: Prediction) -> float:
    return sum(t.bytes for t in found.program.resident[0].tensors if t.name == "gradient buffers")


def test_fp32_shards_are_counted_once_on_the_host() -> None:
    """Adam's two moments, gradients and the only copy of the weights: 16 bytes per parameter, offloaded weights or not."""
    sizes = [predicted(part, framework="torchtitan", optimizer_offload=1.0).host_memory for part in (0.0, 1.0)]
    assert sizes == [pytest.approx(8 * 16 * SHARD, rel=1e-3)] * 2


def test_a_gpu_that_keeps_fp32_weights_gets_them_and_sends_new_shards() -> None:
    program = predicted(framework="megatron_core", optimizer_offload=1.0).program
    assert sum(copied(program, "to_device", "updated weights")) == pytest.approx(4 * SHARD, rel=1e-3)
    assert sum(copied(program, "to_host", "updated shards")) == pytest.approx(2 * SHARD, rel=1e-3)


@pytest.mark.parametrize("framework", ["deepspeed", "torchtitan"])
def test_activations_and_weights_share_the_link_and_add_up_in_host_memory(framework: str) -> None:
    weights, activations, both = (
        predicted(part, framework=framework, activation_offload=layers)
        for part, layers in ((1.0, None), (0.0, 24), (1.0, 24))
    )
    assert both.host_memory == pytest.approx(weights.host_memory + activations.host_memory)
    assert both.peak_memory < min(weights.peak_memory, activations.peak_memory)
    assert both.step_time >= max(weights.step_time, activations.step_time)
    program = both.program
    back = [
        n
        for n in np.flatnonzero(program.kind == COPY).tolist()
        if program.items[program.item[n]].collective == "to_device"
    ]
    streams = {int(program.streams[program.stream_offsets[n]]) for n in back if program.rank[n] == 0}
    assert 1 == len(streams), "one direction of a link, one copy at a time"
    busy = sum(both.trace.end[n] - both.trace.start[n] for n in back)
    assert busy <= both.step_time * (1 + 1e-9)


def test_experts_that_no_rank_shares_stay_on_the_gpu() -> None:
    work = Workload(model=load_model("mixtral_8x7b"), sequence_length=2048, global_batch_size=16)
    p = predicted(framework="megatron_core", expert_parallel=8, work=work)
    weights = next(t.bytes for t in p.program.resident[0].tensors if t.name == "weights")
    assert weights == pytest.approx(2 * 32 * work.model.expert_parameters)


@pytest.mark.parametrize("plan", PLANS)
def test_both_engines_agree_and_everything_is_freed(plan: str) -> None:
    program = lower(LLAMA, Plan(zero_stage=3, parameter_offload=0.7, optimizer_offload=0.3, **PLANS[plan]), 8)
    verify(program)
    prices = price(program, load_cluster("dgx_h100", 8))
    one, two = run(program, prices), run(program, prices, "simpy")
    np.testing.assert_allclose(one.end, two.end, rtol=1e-9)
    after = memory_peaks(program, one, (one.makespan, one.makespan + 1.0))
    np.testing.assert_allclose(after.total, [sum(t.bytes for t in e.tensors) for e in program.resident], rtol=1e-9)
    assert render_text(parse_text(render_text(program))) == render_text(program)


@pytest.mark.parametrize(
    ("plan", "value", "way"),
    [
        ({"zero_stage": 2, "parameter_offload": 1.0}, "zero_stage = 2", "zero_stage = 3"),
        (
            {"zero_stage": 3, "parameter_offload": 0.5, "activation_offload": 2, "fsdp_unit": 2},
            "activation_offload = 2",
            "fsdp_unit = 1",
        ),
    ],
)
def test_refused_where_it_cannot_act(plan: dict[str, Any], value: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        lower(LLAMA, Plan(**plan), 8)
    assert value in str(caught.value)
    assert way in str(caught.value)


@pytest.mark.parametrize("tier", ["host", "nvme"])
def test_a_rank_alone_fetches_its_weights_from_where_they_lie(tier: str) -> None:
    """ZeRO-Infinity's headline on one GPU: of the weights only what runs stands there, and each layer comes for every pass."""
    work = Workload(model=load_model("gpt3_13b"), sequence_length=1024, global_batch_size=4, precision="fp16")
    cluster = load_cluster("v100_dgx2", 1)

    def predicted(**plan: Any) -> Prediction:
        return simulate(work, Plan(framework="deepspeed", zero_stage=3, recompute="full", **plan), cluster)

    here, away = predicted(optimizer_offload=tier), predicted(optimizer_offload=tier, parameter_offload=tier)
    assert not here.fits or here.peak_memory > 2 * work.model.parameters
    assert away.peak_memory < here.peak_memory - 1.8 * work.model.parameters
    copies = [item for item in away.program.items if isinstance(item, Link) and "shard of weights" in item.name]
    brought = sum(
        away.program.items[number].message
        for number in away.program.item.tolist()
        if away.program.items[number] in copies
    )
    assert brought >= 2 * 2 * 0.99 * work.model.parameters  # forward and backward
    gathered = [item for item in away.program.items if isinstance(item, Link) and item.collective == "all_gather"]
    seconds = price(away.program, cluster).occupancy
    assert all(seconds[away.program.items.index(link)] == 0.0 for link in gathered)
