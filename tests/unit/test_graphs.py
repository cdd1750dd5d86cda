"""CUDA graphs as a choice of the plan: what they capture, what they cost in memory, what they spare, and when they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower, resolve
from simulator.plan.plan import Plan
from simulator.program.program import EAGER, IN_LAYER_GRAPH, IN_STEP_GRAPH, OperatorTable, Segment
from simulator.program.spec import verify
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

CAPACITY = {"capacity_factor": 1.0}


def workload(name: str, precision: str = "bf16", **changes: Any) -> Workload:
    model = load_model(name).model_copy(update=changes)
    return Workload(model=model, sequence_length=1024, global_batch_size=32, precision=precision)


def table(work: Workload, name: str, **plan: Any) -> OperatorTable:
    program = lower(work, Plan(**plan), 8)
    verify(program)
    return next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == name)


def started(found: OperatorTable) -> dict[str, int]:
    return dict(zip(found.label, found.captured.tolist(), strict=True))


def step(work: Workload, **plan: Any) -> Prediction:
    return simulate(work, Plan(**plan), load_cluster("dgx_h100", 8))


def test_each_scope_captures_its_part_of_a_layer() -> None:
    dense = started(table(workload("gpt2_355m"), "layer forward", cuda_graphs=("attn",)))
    assert {IN_LAYER_GRAPH} == {dense[x] for x in ("attention norm", "qkv", "attention", "projection")}
    assert {EAGER} == {dense[x] for x in ("mlp norm", "mlp up", "mlp down")}
    both = started(table(workload("gpt2_355m"), "layer backward", cuda_graphs=("attn", "mlp")))
    assert {IN_LAYER_GRAPH} == set(both.values())

    plan: dict[str, Any] = {"expert_parallel": 8, "framework": "megatron_core"}
    sparse = workload("mixtral_8x7b")
    router = started(table(sparse, "moe layer forward", cuda_graphs=("moe_router",), **plan))
    assert [EAGER, IN_LAYER_GRAPH, IN_LAYER_GRAPH, EAGER, EAGER] == [
        router[x] for x in ("qkv", "router", "choice of experts", "token counts", "expert up")
    ]
    counted = started(table(sparse, "moe layer forward", cuda_graphs=("moe_router", "moe_preprocess"), **plan))
    assert IN_LAYER_GRAPH == counted["token counts"]
    fixed = workload("mixtral_8x7b", **CAPACITY)
    whole = started(table(fixed, "moe layer forward", cuda_graphs=("moe",), **plan))
    assert [EAGER, IN_LAYER_GRAPH, IN_LAYER_GRAPH] == [whole[x] for x in ("qkv", "router", "expert down")]


def test_a_graph_of_the_whole_step_leaves_the_host_the_optimizer_alone() -> None:
    program = lower(workload("gpt2_355m"), Plan(cuda_graphs="full_iteration"), 8)
    for item in program.items:
        for found, _ in item.pieces if isinstance(item, Segment) else ():
            assert {EAGER if item.phase == "optimizer" else IN_STEP_GRAPH} == set(found.captured.tolist())


def test_graphs_spare_small_work_the_host_and_large_work_nothing() -> None:
    small = workload("gpt2_355m")
    eager, parts, whole = (step(small, cuda_graphs=g) for g in ("none", ("attn", "mlp"), "full_iteration"))
    assert eager.step_time > 1.2 * parts.step_time >= 1.2 * whole.step_time
    large = Workload(model=load_model("llama2_7b"), sequence_length=4096, global_batch_size=32)
    plan: dict[str, Any] = {"tensor_parallel": 2, "microbatch_size": 4, "zero_stage": 1}
    times = [step(large, cuda_graphs=g, **plan).step_time for g in ("none", "full_iteration")]
    assert times[1] == pytest.approx(times[0], rel=0.02)


def test_graphs_of_parts_keep_a_copy_of_each_layers_input() -> None:
    """Static inputs: one activation [1024 tokens x 1024 x 2 bytes] per layer and microbatch in flight."""
    eager, parts = (step(workload("gpt2_355m"), cuda_graphs=g) for g in ("none", ("attn", "mlp")))
    assert 24 * 1024 * 1024 * 2 == pytest.approx(parts.peak_memory - eager.peak_memory, rel=1e-6)


def test_a_whole_steps_graph_keeps_room_for_more_rows_than_come() -> None:
    work = workload("mixtral_8x7b", **CAPACITY)
    plan: dict[str, Any] = {"expert_parallel": 8, "zero_stage": 1}
    eager, whole = (step(work, cuda_graphs=g, **plan) for g in ("none", "full_iteration"))
    assert 1.0 < whole.peak_memory / eager.peak_memory < 1.1


def test_a_profiles_habit_holds_where_it_can() -> None:
    fused = {"framework": "megatron_bridge_26_06", "expert_parallel": 8, "zero_stage": 1}
    resolved = resolve(workload("qwen3_30b_a3b", "mxfp8"), Plan(**fused), 8)
    assert ("full_iteration",) == resolved.cuda_graphs
    assert () == resolve(workload("qwen3_30b_a3b", "mxfp8"), Plan(**fused, cuda_graphs="none"), 8).cuda_graphs
    told = resolve(workload("qwen3_30b_a3b", "mxfp8"), Plan(**fused, expert_exchange="all_to_all"), 8)
    assert () == told.cuda_graphs  # the host is told how many rows come: no whole graph


@pytest.mark.parametrize(
    ("name", "graphs", "changes", "why"),
    [
        ("mixtral_8x7b", "full_iteration", {}, "number of rows of each expert from the GPU"),
        ("mixtral_8x7b", ("moe",), {}, "rows of fixed number"),
        ("mixtral_8x7b", ("moe_preprocess",), {}, "follows 'moe_router'"),
        ("mixtral_8x7b", ("mlp",), {}, "all layers of model"),
        ("gpt2_355m", ("moe_router",), {}, "is a part of layers with experts"),
        ("gpt2_355m", ("attn",), {"recompute": "full"}, "under full recompute"),
        ("gpt2_355m", "full_iteration", {"optimizer_offload": 0.5}, "leave optimizer_offload out"),
        (
            "mixtral_8x7b",
            ("moe_router",),
            {"recompute": "selective", "recompute_modules": ("moe",), "framework": "megatron_core"},
            "leave 'moe' out of recompute_modules",
        ),
    ],
)
def test_graphs_that_cannot_be_are_refused_with_the_way_out(
    name: str, graphs: str | tuple[str, ...], changes: dict[str, Any], why: str
) -> None:
    plan = {"expert_parallel": 8} if name == "mixtral_8x7b" else {}
    with pytest.raises(PlanError, match="Way out") as caught:
        resolve(workload(name), Plan(**plan, **changes, cuda_graphs=graphs), 8)
    assert why in str(caught.value)


def test_graphs_of_parts_do_not_take_packed_documents() -> None:
    work = Workload(model=load_model("gpt2_355m"), sequence_length=1024, global_batch_size=32, document_length=256)
    with pytest.raises(PlanError, match="packed documents"):
        resolve(work, Plan(cuda_graphs=("attn",)), 8)
    resolve(work, Plan(cuda_graphs="full_iteration"), 8)


def test_one_part_may_stand_alone_and_another_word_gets_one_message() -> None:
    assert ("attn",) == Plan(cuda_graphs="attn").cuda_graphs == Plan(cuda_graphs=["attn"]).cuda_graphs
    for wrong in ("foo", ["attn", "foo"], 3):
        with pytest.raises(SpecError, match="expected none or full_iteration, or a list of parts of layers") as caught:
            Plan(cuda_graphs=wrong)
        assert 1 == str(caught.value).count("cuda_graphs")
