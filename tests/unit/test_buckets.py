"""Buckets of gradients: of whole weights, in the order in which the backward makes them, inside layers too."""

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
from simulator.program.program import COMPUTE, Link, Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload

SMALL = load_model("bert_base").model_copy(update={"hidden": 256, "ffn": 1024, "heads": 4, "kv_heads": 4})
MODEL = load_model("llama2_7b").model_copy(update={"layers": 8})
LAYER = 4.0 * (MODEL.parameters - 2 * MODEL.vocabulary * MODEL.hidden) / MODEL.layers
"""Bytes of the fp32 gradients of a layer, a final norm's part of a thousandth aside."""


def predicted(bucket: float | None, model: Model = MODEL, gpus: int = 16, **plan: Any) -> Prediction:
    work = Workload(model=model, sequence_length=512, global_batch_size=4 * gpus)
    settings = {"framework": "pytorch_ddp", "microbatch_size": 4, "overlap_gradients": True, **plan}
    return simulate(work, Plan(bucket_size=bucket, **settings), load_cluster("dgx_a100", gpus))


def reductions(program: Program) -> list[tuple[int, Link]]:
    """(row, link) of the reductions of gradients, in order."""
    items = ((row, program.items[i]) for row, i in enumerate(program.item.tolist()))
    return [(row, i) for row, i in items if isinstance(i, Link) and "gradients of" in i.name]


def test_buckets_smaller_than_a_layer_change_the_step() -> None:
    steps = [predicted(size, SMALL).step_time for size in (0.1e6, 1e6, 25e6)]
    assert 3 == len(set(steps))
    counts = [len(reductions(predicted(size, SMALL).program)) for size in (0.1e6, 1e6, 25e6)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 3 * SMALL.layers


def test_the_best_size_lies_inside() -> None:
    """torch's own finding (arXiv 2006.15704, section 5.2): many small buckets pay starts, few large ones come late."""
    sizes = [2.0**n * 1e6 for n in range(5, 16)]
    steps = [predicted(size).step_time for size in sizes]
    assert 0 < steps.index(min(steps)) < len(sizes) - 1


@pytest.mark.parametrize("size", [1e4, 1e8, 3e8, 2e9, 1e12])
def test_every_gradient_is_in_one_bucket(size: float) -> None:
    found = reductions(predicted(size).program)
    assert sum(link.message for _, link in found) == pytest.approx(4.0 * MODEL.parameters)


def test_a_bucket_goes_when_its_last_gradient_is_there() -> None:
    p = predicted(1e8)
    program, trace = p.program, p.trace
    for row, _ in reductions(program):
        (cause,) = program.after[program.after_offsets[row] : program.after_offsets[row + 1]].tolist()
        assert COMPUTE == program.kind[cause]
        assert trace.start[row] >= trace.end[cause]
    backward = np.flatnonzero((program.kind == COMPUTE) & (program.action == 1))
    first = reductions(program)[2][0]
    assert trace.start[first] < trace.end[backward[4]], "inside the first layers, not behind them"


@pytest.mark.parametrize("overlap", [True, False])
def test_ddps_plain_loop_adds_gradients_after_every_microbatch(overlap: bool) -> None:
    """Without no_sync (arXiv 2006.15704, section 3.2.4) every backward ends with its reductions: as many of each, and as much waiting."""
    settings = {"microbatch_size": 1, "overlap_gradients": overlap}
    once, each = (
        predicted(1e8 if overlap else None, reduce_gradients=when, **settings) for when in ("step", "microbatch")
    )
    assert 4 * len(reductions(once.program)) == len(reductions(each.program))
    assert 4 * once.exposed_communication["dp"] == pytest.approx(each.exposed_communication["dp"], rel=0.02)
    verify(each.program)
    program, trace = each.program, each.trace
    ends = {
        int(program.microbatch[row]): trace.end[row]
        for row in np.flatnonzero((program.kind == COMPUTE) & (program.action == 1))
    }
    for row in np.flatnonzero((program.kind == COMPUTE) & (program.action == 0)):
        before = [trace.end[r] for r, _ in reductions(program) if trace.start[r] < trace.start[row]]
        done = sum(end <= trace.start[row] for end in ends.values())
        assert done * len(before) == done * done * len(reductions(once.program))
        assert not before or max(before) <= trace.start[row]


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        ({"microbatch_size": 4}, "one microbatch are added once"),
        ({"zero_stage": 1}, "whole gradients"),
        ({"zero_stage": 3, "overlap_gradients": None}, "whole gradients"),
        ({"pipeline_parallel": 2, "schedule": "chimera"}, "once they are complete"),
        ({"pipeline_parallel": 2, "schedule": "pipedream", "overlap_gradients": None}, "without a flush"),
        ({"pipeline_parallel": 16, "microbatch_size": 2}, "more than one|between ranks|data_parallel"),
    ],
)
def test_when_replicas_add_gradients_is_refused_where_it_says_nothing(plan: dict[str, Any], rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        predicted(None, reduce_gradients="microbatch", **{"microbatch_size": 1, **plan})


def test_a_bucket_of_a_layer_is_a_layer_as_ever() -> None:
    assert MODEL.layers + 1 == len(reductions(predicted(0.999 * LAYER).program))
    assert MODEL.layers + 1 < len(reductions(predicted(0.4 * LAYER).program))
    names = [link.name for _, link in reductions(predicted(1.5 * LAYER).program)]
    assert not [name for name in names if "part" in name]


@pytest.mark.parametrize(
    "plan",
    [
        {"recompute": "full"},
        {
            "tensor_parallel": 2,
            "sequence_parallel": True,
            "overlap_tensor_parallel": True,
            "framework": "megatron_core",
        },
        {"tensor_parallel": 2, "sequence_parallel": True, "tensor_parallel_splits": 4, "framework": "megatron_core"},
        {"pipeline_parallel": 2, "schedule": "zb_h1", "framework": "megatron_core", "microbatch_size": 1},
        {"zero_stage": 2, "framework": "deepspeed", "optimizer_offload": 1.0, "microbatch_size": 2},
        {"zero_stage": 1, "framework": "megatron_core", "overlap_parameters": True},
    ],
)
def test_cut_layers_do_the_same_work_on_both_engines(plan: dict[str, Any]) -> None:
    work = Workload(model=MODEL, sequence_length=512, global_batch_size=64)
    settings = {"framework": "pytorch_ddp", "microbatch_size": 4, "overlap_gradients": True, **plan}
    cluster, flops = load_cluster("dgx_a100", 8), []
    for size in (1e7, 1e12):
        program = lower(work, Plan(bucket_size=size, **settings), 8)
        verify(program)
        assert render_text(parse_text(render_text(program))) == render_text(program)
        prices = price(program, cluster)
        one, two = run(program, prices), run(program, prices, "simpy")
        np.testing.assert_allclose(one.end, two.end, rtol=1e-9)
        of_item = [sum(t.flops.sum() * n for t, n in getattr(i, "pieces", ())) for i in program.items]
        flops.append(sum(of_item[i] for i in program.item.tolist()))
    assert flops[0] == pytest.approx(flops[1], rel=1e-12)


def test_what_is_reduced_whole_is_said() -> None:
    sparse = load_model("mixtral_8x7b").model_copy(update={"layers": 2})
    said = " ".join(
        predicted(1e6, sparse, zero_stage=1, framework="megatron_core", expert_parallel=8).provenance["assumptions"]
    )
    assert "has the effect of one" in said
    units = predicted(1e6, zero_stage=2, framework="pytorch_fsdp")
    assert "has the effect of one" in " ".join(units.provenance["assumptions"])
    assert not [link.name for _, link in reductions(units.program) if "part" in link.name]
    assert "has the effect of one" not in " ".join(predicted(1e6).provenance["assumptions"])


def test_buckets_of_megatron_core_grow_with_the_ranks() -> None:
    """NVIDIA/Megatron-LM 0fda386c: at least a million gradients for each of 512 ranks, where 40 million were the size for all."""
    code = {"gpus": 512, "framework": "megatron_core", "zero_stage": 1, "overlap_gradients": None}
    grown, same, fixed = (predicted(size, **code) for size in (None, 4.0 * 512e6, 160e6))
    assert grown.step_time == same.step_time
    assert len(reductions(grown.program)) < len(reductions(fixed.program))
    assert predicted(None, **code | {"gpus": 16}).step_time == predicted(160e6, **code | {"gpus": 16}).step_time


def test_the_first_bucket_of_ddp_is_of_one_mebibyte_unless_a_size_is_given() -> None:
    """torch's Reducer, rebuild_buckets: limits of 1 MiB and 25 MiB for gradients as they come; bucket_cap_mb is for all."""
    found = [link.message for _, link in reductions(predicted(None, SMALL).program)]
    given = [link.message for _, link in reductions(predicted(25.0 * 2**20, SMALL).program)]
    assert 2**20 <= found[0] < 2 * 2**20
    assert all(size >= 25 * 2**20 for size in (*found[1:-1], *given[:-1]))
    assert sum(found) == pytest.approx(sum(given))
    other = [link.message for _, link in reductions(predicted(None, SMALL, framework="megatron_core").program)]
    assert other[0] > 2 * 2**20


def test_the_head_of_a_convolutional_network_is_the_first_bucket() -> None:
    """2,048 x 1,000 weights and biases: more than 1 MiB, less than 25."""
    work = Workload(model=load_model("resnet50"), sequence_length=1, global_batch_size=512, precision="fp32")
    plan = Plan(framework="pytorch_ddp", microbatch_size=32)
    found = reductions(simulate(work, plan, load_cluster("v100_dgx1", 16)).program)
    assert found[0][1].message == pytest.approx(4.0 * (2048 * 1000 + 1000))
