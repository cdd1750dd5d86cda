"""Layers that run again on the way to others (Revolve, halves), and groups as large as need least memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.importers.write_megatron import megatron_script
from simulator.job import Job
from simulator.lowering import begin, longest_reversal, lower, resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES
from simulator.program.spec import verify
from simulator.report.prediction import Prediction
from simulator.report.recomputed import recomputed_flops
from simulator.report.turns import turns_section
from simulator.schedules.reversal import least_repeats
from simulator.search.held import least_bytes
from simulator.simulation import simulate
from simulator.studies.explanation import explain
from simulator.testing.block_contract import small_model
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload


def model(layers: int) -> Model:
    """A small vocabulary, so that layers are the fullest instant."""
    return load_model("gpt2_355m").model_copy(update={"layers": layers, "vocabulary": 512})


def work(layers: int, batch: int = 8) -> Workload:
    return Workload(model=model(layers), sequence_length=1024, global_batch_size=batch)


def revolve(inputs: int, **plan: Any) -> Plan:
    return Plan(recompute="revolve", recompute_checkpoints=inputs, **{"microbatch_size": 8, **plan})


def predicted(workload: Workload, plan: Plan, gpus: int = 1) -> Prediction:
    verify(lower(workload, plan, gpus))
    return simulate(workload, plan, load_cluster("a100_x8", gpus))


def layer(workload: Workload, plan: Plan, gpus: int = 1) -> LayerCost:
    return layer_costs(workload, resolve(workload, plan, gpus))["layer"]


def standing(found: Prediction) -> float:
    """Bytes at the peak that are neither states nor the context."""
    kept = [CATEGORIES.index(name) for name in ("activations", "workspace", "logits")]
    return float(found.memory.by_category[0, kept].sum())


def size(cost: LayerCost, *fields: str) -> float:
    return sum(t.bytes for field in fields for t in getattr(cost, field))


@pytest.mark.parametrize(("layers", "inputs"), [(10, 3), (12, 3), (24, 4), (48, 5), (96, 6), (96, 9), (7, 1), (6, 6)])
def test_the_program_runs_as_many_layers_again_as_the_theorem_says(layers: int, inputs: int) -> None:
    """Griewank and Walther, Algorithm 799: t(L, c) forwards, with c inputs and what one backward reads."""
    workload, plan = work(layers), revolve(inputs)
    one = layer(workload, Plan(recompute="full", microbatch_size=8))
    found = predicted(workload, plan)
    again = recomputed_flops(found.program) / float(one.forward.flops.sum())
    assert least_repeats(layers, inputs) == pytest.approx(again, rel=1e-12)

    inside = size(one, "backward_mark")  # what a backward reads, its gradients on their way
    stored = len(longest_reversal(workload, resolve(workload, plan, 1)).stored)
    workspace = (
        standing(predicted(workload, Plan(recompute="full", microbatch_size=8))) - layers * one.input_bytes - inside
    )
    assert stored * one.input_bytes + inside + workspace == pytest.approx(standing(found))
    assert stored == min(inputs, layers - 1)  # that of the last layer is read at once


def test_more_inputs_take_less_time_and_more_memory() -> None:
    found = [predicted(work(24), revolve(inputs)) for inputs in (1, 2, 4, 8, 23)]
    assert [p.step_time for p in found] == sorted((p.step_time for p in found), reverse=True)
    assert [p.peak_memory for p in found] == sorted(p.peak_memory for p in found)


def test_halves_are_as_quick_as_a_logarithm_says() -> None:
    """Chen et al., arXiv 1604.06174, section 4.3: O(log L) memory, O(L log L) forwards."""
    peaks = []
    for power in (3, 4, 5, 6):
        workload, plan = work(2**power), Plan(recompute="full", recompute_method="recursive", microbatch_size=8)
        found, cost = predicted(workload, plan), layer(workload, plan)
        again = recomputed_flops(found.program) / float(cost.forward.flops.sum())
        assert 2**power * power / 2 == pytest.approx(again, rel=1e-12)
        peaks.append(standing(found) / cost.input_bytes)
    assert np.diff(peaks).tolist() == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    "plan",
    [
        {"pipeline_parallel": 4, "microbatch_size": 2},
        {"pipeline_parallel": 2, "chunks_per_rank": 2, "microbatch_size": 1},
        {"zero_stage": 2, "bucket_size": 4e6},
        {"reduce_gradients": "microbatch", "microbatch_size": 2},
        {"tensor_parallel": 4, "sequence_parallel": True},
        {"tensor_parallel": 4, "framework": "gpt_neox"},
        {"framework": "megatron_deepspeed", "optimizer_offload": 1.0},
    ],
)
def test_chunks_buckets_and_tensor_ranks_run_the_same_turns(plan: dict[str, Any]) -> None:
    workload, chosen = work(16, 64), revolve(2, **plan)
    found = predicted(workload, chosen, 4)
    full = predicted(workload, Plan(recompute="full", **{"microbatch_size": 8, **plan}), 4)
    turns = longest_reversal(workload, resolve(workload, chosen, 4))
    ratio = recomputed_flops(found.program) / recomputed_flops(full.program)
    assert turns.repeats / turns.layers == pytest.approx(ratio, rel=1e-9)
    job = Job(name="j", workload=workload, plan=chosen, cluster=load_cluster("a100_x8", 4))
    assert least_bytes(job, begin(workload, resolve(workload, chosen, 4))) <= found.peak_memory


def test_a_forward_on_the_way_gathers_what_ranks_keep_a_part_of_once_per_stored_input() -> None:
    """GPT-NeoX' tensor ranks keep a part of a checkpoint each: who runs on from it puts it together."""
    workload, plan = work(8), revolve(2, tensor_parallel=4, framework="gpt_neox")
    costs = layer_costs(workload, resolve(workload, plan, 4))
    gathers = {name: list(cost.backward.label).count("layer input all_gather") for name, cost in costs.items()}
    assert {"layer": 1, "layer again": 1, "layer in a group": 0, "layer in a group again": 0, "layer kept": 0} == {
        name: count for name, count in gathers.items() if name.startswith("layer")
    }


def test_layers_of_two_kinds_are_reversed_by_what_their_forwards_take() -> None:
    """A dense layer before layers with experts: fewest FLOP, not fewest layers."""
    workload = Workload(model=load_model("deepseek_v2_lite"), sequence_length=1024, global_batch_size=8)
    plan = revolve(4, microbatch_size=1)
    resolved = resolve(workload, plan, 8)
    turns, costs = longest_reversal(workload, resolved), layer_costs(workload, resolved)
    flops = [float(costs[kind].forward.flops.sum()) for kind in workload.model.layer_kinds]
    assert len(set(flops)) == 2
    expected = sum(sum(flops[turn.start : turn.last + 1]) for turn in turns.turns if turn.again)
    program = lower(workload, plan, 8)
    verify(program)
    assert expected * 8 == pytest.approx(recomputed_flops(program), rel=1e-9)


def test_where_experts_come_last_a_dense_layer_stands_in_their_place() -> None:
    small = small_model(layers=6, experts=4, experts_per_token=2, expert_ffn=512, dense_layers=3)
    workload = Workload(model=small, sequence_length=128, global_batch_size=8)
    plan = revolve(2, microbatch_size=8)
    costs = layer_costs(workload, resolve(workload, plan, 1))
    found = predicted(workload, plan)
    kept = size(costs["moe layer kept"], "saved")
    assert size(costs["moe layer"], "again") == pytest.approx(kept)
    held = found.memory.by_category[0, CATEGORIES.index("activations")]
    ends = size(costs["head"], "saved") + size(costs["embedding"], "saved")
    assert held <= 2 * costs["layer"].input_bytes + kept + ends + 1


def brute(workload: Workload, gpus: int, most: int, **plan: Any) -> tuple[int, int]:
    """Layers of a group that are chosen, and those whose program needs least."""
    given = {"recompute": "full", "recompute_method": "uniform", **plan}
    chosen = resolve(workload, Plan(**given, recompute_layers="auto"), gpus).recomputes.layers
    cluster = load_cluster("a100_x8", gpus)
    peaks = {n: simulate(workload, Plan(**given, recompute_layers=n), cluster).peak_memory for n in range(1, most + 1)}
    assert simulate(workload, Plan(**given, recompute_layers="auto"), cluster).peak_memory == min(peaks.values())
    return chosen, min(peaks, key=lambda n: peaks[n])


@pytest.mark.parametrize(
    ("layers", "gpus", "plan"),
    [
        (12, 1, {"microbatch_size": 8}),
        (96, 1, {"microbatch_size": 8}),
        (48, 4, {"pipeline_parallel": 4, "microbatch_size": 4}),
        (48, 4, {"pipeline_parallel": 4, "microbatch_size": 4, "schedule": "gpipe"}),
        (48, 4, {"pipeline_parallel": 2, "chunks_per_rank": 2, "microbatch_size": 2}),
        (96, 8, {"pipeline_parallel": 2, "zero_stage": 3, "framework": "torchtitan", "microbatch_size": 8}),
    ],
)
def test_auto_is_the_size_of_groups_that_needs_least(layers: int, gpus: int, plan: dict[str, Any]) -> None:
    chosen, best = brute(work(layers, 64), gpus, 9, **plan)
    assert best == chosen


def test_least_memory_grows_with_the_root_of_the_depth() -> None:
    """Chen et al., arXiv 1604.06174, theorem of section 4.2: sqrt(L), 12 to 384 layers, time one more forward whatever n."""

    def plan(group: int | str) -> Plan:
        return Plan(recompute="full", recompute_method="uniform", recompute_layers=group, microbatch_size=8)

    depths, least = (12, 24, 48, 96, 192, 384), []
    for depth in depths:
        workload = work(depth)
        found, single = predicted(workload, plan("auto")), predicted(workload, plan(1))
        chosen = resolve(workload, plan("auto"), 1).recomputes.layers
        two, three = (layer(workload, plan(group)) for group in (2, 3))
        inside = size(three, "backward_mark") - size(two, "backward_mark")  # of one more layer in a group
        assert abs(chosen - math.sqrt(depth * two.input_bytes / inside)) < 0.7
        assert 0.98 < found.breakdown["recompute"] / found.breakdown["forward"] < 1.001
        always = standing(single) - (depth - 1) * two.input_bytes - inside  # what stands whatever the groups
        least.append(standing(found) - always)
    assert 0.5 == pytest.approx(np.polyfit(np.log(depths), np.log(least), 1)[0], abs=0.05)


def test_auto_alone_means_groups() -> None:
    plan = Plan(recompute="full", recompute_layers="auto", microbatch_size=8)
    assert resolve(work(96), plan, 1).recomputes.text == "full (2 layers at a time)"


def test_the_picture_says_which_input_stands_when() -> None:
    workload, plan = work(4), revolve(2)
    turns = longest_reversal(workload, resolve(workload, plan, 1))
    section = turns_section(turns, "full (revolve from 2 inputs)")
    assert section.table is not None
    assert [line for _, line in section.table.rows] == ["* |B   |", "  | T  |", "o |oOT |", "o |oooT|"]
    job = Job(name="j", workload=workload, plan=plan, cluster=load_cluster("a100_x8", 1))
    found = explain(job, predicted(workload, plan))
    assert section in found.sections()
    assert found.to_dict()["recompute_turns"]["forwards_again"] == least_repeats(4, 2)
    plain = replace(job, plan=Plan(recompute="full", microbatch_size=8))
    assert explain(plain, predicted(workload, plain.plan)).to_dict()["recompute_turns"] is None


def test_other_codes_are_told_the_number_and_what_they_do_not_have() -> None:
    cluster = load_cluster("a100_x8", 1)
    job = Job(
        name="j",
        workload=work(96),
        plan=Plan(recompute="full", recompute_layers="auto", microbatch_size=8),
        cluster=cluster,
    )
    text = megatron_script(job)
    assert "--recompute-method uniform" in text
    assert "--recompute-num-layers 2" in text
    assert "plan.recompute = revolve" in megatron_script(replace(job, plan=revolve(4)))


def test_ranks_keep_a_part_each_of_the_inputs_where_the_plan_says_so() -> None:
    """Pa of ZeRO-R (arXiv 1910.02054, section 6.1): 1 / N of the inputs, an all_gather of b s h per layer more."""
    workload, plan = work(24), {"recompute": "full", "tensor_parallel": 4, "microbatch_size": 8}
    whole, parts = (layer(workload, Plan(**plan, partition_activations=value), 4) for value in (False, True))
    assert size(whole, "saved") == 4 * size(parts, "saved")
    assert list(whole.backward.label) == list(parts.backward.label)[2:]
    gathered = list(parts.backward.label).index("layer input all_gather")
    assert float(parts.backward.message[gathered]) == 8 * 1024 * 1024 * 2


def test_inputs_of_a_hundred_billion_weights_are_those_of_the_zero_paper() -> None:
    """125 layers of 8192, 32 sequences of 1024, 16 tensor ranks: 33 GB, and 2 GB in parts; that is an input for every two layers."""
    shape = {"layers": 125, "hidden": 8192, "heads": 64, "kv_heads": 64, "ffn": 32768}
    workload = Workload(
        model=load_model("gpt3_175b").model_copy(update=shape),
        sequence_length=1024,
        global_batch_size=32,
        precision="fp16",
    )
    given = {"recompute": "full", "recompute_layers": 2, "tensor_parallel": 16, "microbatch_size": 32}
    for parts, expected in ((False, 33e9), (True, 33e9 / 16)):
        plan = Plan(**given, recompute_method="uniform", partition_activations=parts)
        state = begin(workload, resolve(workload, plan, 16))
        kept = sum(size(state.costs[kind], "saved") for kind in state.chunks[0].kinds if "layer" in kind)
        assert kept == pytest.approx(expected, rel=0.04)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"recompute": "revolve"}, "is not given", "recompute_checkpoints = 4"),
    ({"recompute": "revolve", "recompute_checkpoints": 25}, "has 24", "recompute_checkpoints = 24"),
    ({"recompute": "full", "recompute_checkpoints": 3}, "'full'", "recompute = 'revolve'"),
    (
        {"recompute": "revolve", "recompute_checkpoints": 3, "recompute_method": "block"},
        "'block'",
        "leave recompute_method",
    ),
    ({"recompute": "revolve", "recompute_checkpoints": 3, "recompute_layers": 2}, "= 2", "leave recompute_layers out"),
    ({"recompute": "revolve", "recompute_checkpoints": 3, "zero_stage": 3}, "zero_stage = 3", "recompute = 'full'"),
    ({"recompute": "revolve", "recompute_checkpoints": 3, "activation_offload": 2}, "= 2", "recompute = 'full'"),
    (
        {"recompute": "revolve", "recompute_checkpoints": 3, "pipeline_parallel": 2, "schedule": "zb_h1"},
        "zb_h1",
        "recompute = 'full'",
    ),
    ({"recompute": "full", "recompute_method": "recursive", "recompute_layers": 2}, "= 2", "'uniform'"),
    ({"recompute": "selective", "recompute_method": "recursive"}, "'selective'", "recompute = 'full'"),
    ({"recompute": "full", "recompute_method": "block", "recompute_layers": "auto"}, "'block'", "'uniform'"),
    ({"recompute": "full", "partition_activations": True}, "tensor_parallel = 1", "tensor_parallel > 1"),
    ({"partition_activations": True, "recompute": "none", "tensor_parallel": 2}, "'none'", "recompute = 'full'"),
    (
        {"partition_activations": True, "recompute": "full", "tensor_parallel": 2, "sequence_parallel": True},
        "sequence_parallel = true",
        "leave partition_activations or sequence_parallel out",
    ),
    ({"recompute": "none", "recompute_layers": "auto"}, "'none'", "recompute = 'full'"),
]


@pytest.mark.parametrize(("plan", "values", "way"), BAD)
def test_refused_where_it_cannot_act(plan: dict[str, Any], values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        lower(work(24, 16), Plan(**plan), 8)
    assert values in str(caught.value)
    assert way in str(caught.value)
