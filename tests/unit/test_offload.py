"""What goes to the host: how much, when, what waits for it, and what is left on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.costs.price import price
from simulator.engine import run
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.host import host_of, load_host_coefficients
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES, COPY, Link, Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.report.memory import memory_peaks
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

LLAMA = Workload(model=load_model("llama3_8b"), sequence_length=8192, global_batch_size=32)
QWEN = Workload(model=load_model("qwen3_30b_a3b"), sequence_length=4096, global_batch_size=64)


def predicted(cluster: str = "dgx_h100", workload: Workload = LLAMA, gpus: int = 8, **plan: Any) -> Prediction:
    return simulate(workload, Plan(**plan), load_cluster(cluster, gpus))


def lowered(**plan: Any) -> Program:
    program = lower(LLAMA, Plan(**plan), 8)
    verify(program)
    return program


def copies(program: Program, what: str) -> list[Link]:
    items = [program.items[i] for i in program.item[program.kind == COPY]]
    return [item for item in items if isinstance(item, Link) and item.collective == what]


# --- optimizer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "measured"), [(0.25, 0.875), (0.5, 1.488), (0.75, 2.191), (1.0, 3.193)])
def test_an_update_on_the_cpu_costs_what_was_measured(part: float, measured: float) -> None:
    """Megatron Bridge, Qwen3-30B-A3B on 16 H100: 996 ms grow to 1871, 2484, 3187, 4189 ms."""
    plan = {"zero_stage": 1, "expert_parallel": 8}
    before = predicted(workload=QWEN, gpus=16, **plan)
    after = predicted(workload=QWEN, gpus=16, **plan, optimizer_offload=part)
    assert after.step_time - before.step_time == pytest.approx(measured, rel=0.2)
    freed = before.memory.by_category[0, 2] - after.memory.by_category[0, 2]
    assert freed == pytest.approx(part * 15.3e9, rel=0.02)


def test_the_three_parts_follow_one_another_and_overlap_layer_by_layer() -> None:
    plain = lowered(zero_stage=1, optimizer_offload=0.5)
    sizes = {what: [link.message for link in copies(plain, what)] for what in ("to_host", "host_update", "to_device")}
    mine = 0.5 * LLAMA.model.parameters / 8
    assert {what: len(found) for what, found in sizes.items()} == dict.fromkeys(sizes, 1)
    assert sizes["to_host"][0] == pytest.approx(4 * mine, rel=1e-6)
    assert sizes["host_update"][0] == pytest.approx(88 * mine, rel=1e-6)
    assert sizes["to_device"][0] == pytest.approx(4 * mine, rel=1e-6)
    pieces = lowered(zero_stage=1, optimizer_offload=0.5, optimizer_offload_overlap=True)
    assert 32 == len(copies(pieces, "to_host"))
    one, two = (predicted(zero_stage=1, optimizer_offload=1.0, optimizer_offload_overlap=o) for o in (False, True))
    assert two.step_time < one.step_time
    assert one.breakdown["host"] > two.breakdown["host"]


def test_a_fused_update_moves_less_and_takes_the_master_weights_along() -> None:
    megatron, deepspeed = (
        predicted(zero_stage=2, optimizer_offload=1.0, framework=name, recompute="full", attention="flash2")
        for name in ("megatron_core", "deepspeed")
    )
    share = LLAMA.model.parameters / 8
    assert megatron.memory.by_category[0, 2] == pytest.approx(4 * share, rel=1e-3), "fp32 weights stay"
    assert deepspeed.memory.by_category[0, 2] == 0
    slow, quick = (sum(link.message for link in copies(p.program, "host_update")) for p in (megatron, deepspeed))
    assert 2.5 < slow / quick < 4


def test_what_is_on_the_host_must_fit_there() -> None:
    p = predicted(optimizer_offload=1.0)
    assert p.host_memory == pytest.approx(8 * 16 * LLAMA.model.parameters, rel=1e-3)
    assert not p.tiers[0].over
    assert p.to_dict()["host_memory_bytes"] == p.host_memory
    large = Workload(model=load_model("gpt3_175b"), sequence_length=2048, global_batch_size=8)
    full = simulate(large, Plan(tensor_parallel=8, optimizer_offload=1.0), load_cluster("dgx_h100", 8))
    assert full.tiers[0].over
    assert not full.fits


def test_a_node_without_a_word_of_its_host_is_refused() -> None:
    with pytest.raises(SpecError, match="host_memory"):
        simulate(
            Workload(model=load_model("gpt2_124m"), sequence_length=512, global_batch_size=1, precision="fp32"),
            Plan(optimizer_offload=1.0),
            load_cluster("piz_daint", 1),
        )


# --- activations ---------------------------------------------------------------------------------------------------


def test_each_offloaded_layer_goes_out_and_comes_back_once_per_microbatch() -> None:
    program = lowered(activation_offload=5)
    out, back = copies(program, "to_host"), copies(program, "to_device")
    assert (5 * 4, 5 * 4) == (len(out), len(back))
    assert {link.message for link in out} == {link.message for link in back}
    whole = lowered()
    saved = whole.effect_bytes[whole.start_effect[0]][CATEGORIES.index("activations")]
    layer = next(iter(out)).message
    assert 32 * layer < saved < 33 * layer, "32 layers, and the inputs of the head"


def test_copies_hide_where_they_are_quicker_than_the_layers_and_hold_up_where_not() -> None:
    base = predicted("dgx_a100", recompute="full")
    hidden = predicted("dgx_a100", recompute="full", activation_offload=32)
    assert hidden.step_time == pytest.approx(base.step_time, rel=0.01)
    none, all_ = predicted("dgx_a100"), predicted("dgx_a100", activation_offload=32)
    busy = sum(link.message for link in copies(all_.program, "to_host")) / (31.5e9 * 0.88 / 2)
    assert all_.step_time > none.step_time + busy, "there and back, beside less than that of compute"
    assert all_.peak_memory < none.peak_memory


@pytest.mark.parametrize(
    "plan",
    [
        {"activation_offload": 3, "pipeline_parallel": 4, "schedule": "zb_h1"},
        {"activation_offload": 3, "pipeline_parallel": 2, "chunks_per_rank": 2},
        {"activation_offload": 3, "zero_stage": 3},
        {"activation_offload": 3, "zero_stage": 2, "optimizer_offload": 0.5},
    ],
)
def test_everything_comes_back_and_text_keeps_it(plan: dict[str, Any]) -> None:
    program = lowered(**plan)
    trace = run(program, price(program, load_cluster("dgx_a100", 8)))
    after = memory_peaks(program, trace, (trace.makespan, trace.makespan + 1.0))
    np.testing.assert_allclose(after.total, [sum(t.bytes for t in e.tensors) for e in program.resident], rtol=1e-9)
    again = parse_text(render_text(program))
    assert render_text(again) == render_text(program)
    assert again.host_resident == program.host_resident


def test_buckets_keep_their_size_where_layers_go_to_the_host() -> None:
    def reductions(**plan: Any) -> list[float]:
        program = lowered(**plan, zero_stage=1, bucket_size=2e9)
        found = [program.items[i] for i in program.item]
        return sorted(i.message for i in found if isinstance(i, Link) and i.collective == "reduce_scatter")

    assert reductions() == reductions(activation_offload=20)


@pytest.mark.parametrize(
    ("plan", "values", "way"),
    [
        ({"optimizer_offload_overlap": True}, "optimizer_offload = 0", "leave it out"),
        ({"activation_offload": 33}, "has 32", "activation_offload = 32"),
        ({"activation_offload": 2, "zero_stage": 3, "fsdp_unit": 4}, "fsdp_unit = 4", "fsdp_unit = 1"),
        ({"activation_offload": 2, "pipeline_parallel": 4, "schedule": "dualpipe"}, "dualpipe", "one_f_one_b"),
    ],
)
def test_refused_where_it_cannot_act(plan: dict[str, Any], values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        lower(Workload(model=LLAMA.model, sequence_length=8192, global_batch_size=64), Plan(**plan), 8)
    assert values in str(caught.value)
    assert way in str(caught.value)


def test_gpus_that_have_no_part_in_the_job_leave_their_share_of_the_host_to_it() -> None:
    """A DGX-2 has 16 GPUs, four on each link to the host: one alone has the whole link, and the whole memory's bandwidth."""
    one, two, all_ = (host_of(load_cluster("v100_dgx2", gpus)) for gpus in (1, 2, 16))
    assert one.copy_bandwidth == 2 * two.copy_bandwidth == 4 * all_.copy_bandwidth
    assert one.stream_bandwidth == 2 * two.stream_bandwidth == 16 * all_.stream_bandwidth
    assert host_of(load_cluster("v100_dgx2", 32)) == all_
    numbers = load_host_coefficients()
    slower = numbers.unbound_fraction / numbers.stream_fraction
    assert host_of(load_cluster("v100_dgx2", 16), unbound=True).stream_bandwidth == pytest.approx(
        slower * all_.stream_bandwidth
    )
    assert host_of(load_cluster("v100_dgx2", 1), unbound=True) == one  # a rank alone has the cores to itself
