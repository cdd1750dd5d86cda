"""What must hold for every plan: drawn at random."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.costs.price import price
from simulator.engine import run
from simulator.errors import PlanError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.parts import Part
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import Program
from simulator.program.spec import verify
from simulator.report.breakdown import breakdown
from simulator.report.memory import memory_peaks
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

relaxed = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Workload, dict[str, Any], int]:
    """A workload, a plan and a world size that the rules accept."""
    name = draw(st.sampled_from(["gpt2_355m", "llama3_2_1b", "gpt3_1_3b", "deepseek_v2_lite"]))
    tensor, pipeline, replicas = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    chunks = draw(st.sampled_from([1, 2])) if pipeline > 1 else 1
    microbatches = pipeline * draw(st.integers(1, 3))
    plan: dict[str, Any] = {
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "data_parallel": replicas,
        "chunks_per_rank": chunks,
        "microbatch_size": draw(st.sampled_from([1, 2])),
        "sequence_parallel": tensor > 1 and draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "selective", "full", "revolve"])),
        "zero_stage": draw(st.integers(0, 3)) if replicas > 1 else 0,
        "framework": draw(
            st.sampled_from(["megatron_lm", "megatron_core", "pytorch_ddp", "torchtitan", "megatron_deepspeed"])
        ),
    }
    if name == "deepseek_v2_lite":
        plan["expert_parallel"] = draw(st.sampled_from([1, 2, 4]))
        plan["sequence_parallel"] = tensor > 1 and (plan["sequence_parallel"] or plan["expert_parallel"] > 1)
        plan["expert_tensor_parallel"] = draw(st.sampled_from([None, 1])) if plan["sequence_parallel"] else None
    if chunks == 1 and pipeline > 1:
        plan["schedule"] = draw(st.sampled_from(["gpipe", "1f1b", "chimera"]))
        plan["p2p"] = draw(st.sampled_from(["latency", "blocking"]))
        if plan["schedule"] == "chimera":
            plan["zero_stage"] = 0
    if plan["zero_stage"]:
        plan["shard_size"] = draw(st.sampled_from([None, 2, replicas]))
    if plan["zero_stage"] == 3:
        plan["fsdp_unit"] = draw(st.sampled_from([None, 3, "chunk"]))
        plan["fsdp_reduce"] = draw(st.sampled_from([None, "step"]))
        plan["parameter_offload"] = draw(st.sampled_from([0.0, 1.0, "host"]))
    if plan["recompute"] == "full":
        plan["recompute_method"] = draw(st.sampled_from([None, "block", "every", "uniform", "recursive"]))
        plan["recompute_layers"] = None if plan["recompute_method"] in (None, "recursive") else 2
    if plan["recompute"] == "revolve":
        plan["recompute_checkpoints"] = draw(st.sampled_from([1, 3]))
    plan["optimizer_offload"] = draw(st.sampled_from([0.0, 0.3, 1.0]))
    if plan.get("schedule") != "chimera" and plan.get("fsdp_unit") is None and not plan.get("parameter_offload"):
        plan["activation_offload"] = draw(st.sampled_from([None, 2]))
    batch = microbatches * replicas * plan["microbatch_size"]
    return (
        Workload(model=load_model(name), sequence_length=512, global_batch_size=batch),
        plan,
        tensor * pipeline * replicas,
    )


def cluster_for(world: int) -> Cluster:
    return load_cluster("dgx_a100", world if world <= 8 or world % 8 == 0 else 8 * (world // 8 + 1))


def lowered(drawn: tuple[Workload, dict[str, Any], int]) -> Program:
    work, plan, world = drawn
    try:
        return lower(work, Plan(**plan), world)
    except PlanError:
        assume(False)
        raise


@given(plans())
@relaxed
def test_every_program_obeys_the_rules_and_its_books_balance(drawn: tuple[Workload, dict[str, Any], int]) -> None:
    program = lowered(drawn)
    verify(program)
    prices = price(program, cluster_for(drawn[2]))
    trace = run(program, prices)
    assert (trace.end >= trace.start).all()
    np.testing.assert_allclose(breakdown(program, prices, trace).sum(axis=1), trace.makespan, rtol=1e-9)
    report = memory_peaks(program, trace)
    base = np.array([sum(t.bytes for t in e.tensors) for e in program.resident])
    assert (report.total >= base - 1).all()


@given(plans())
@relaxed
def test_simpy_and_compiled_agree_on_real_programs(drawn: tuple[Workload, dict[str, Any], int]) -> None:
    program = lowered(drawn)
    prices = price(program, cluster_for(drawn[2]))
    one, two = run(program, prices), run(program, prices, "simpy")
    np.testing.assert_allclose(one.end, two.end, rtol=1e-9)
    plain = replace(prices, slowdown=np.ones_like(prices.slowdown))
    assert np.array_equal(run(program, plain).end, run(program, plain, "simpy").end)


@given(plans(), st.floats(1.1, 8.0))
@relaxed
def test_faster_links_are_never_slower_without_contention(
    drawn: tuple[Workload, dict[str, Any], int], factor: float
) -> None:
    program = lowered(drawn)
    prices = price(program, cluster_for(drawn[2]))
    prices = replace(prices, slowdown=np.ones_like(prices.slowdown))
    links = prices.share[:, 3] + prices.share[:, 4] > 0
    occupancy, latency = prices.occupancy.copy(), prices.latency.copy()
    occupancy[links] /= factor
    latency[links] /= factor
    quick = replace(prices, occupancy=occupancy, latency=latency)
    assert run(program, quick).makespan <= run(program, prices).makespan * (1 + 1e-12)


@given(plans())
@relaxed
def test_more_recompute_means_less_memory_and_more_work(drawn: tuple[Workload, dict[str, Any], int]) -> None:
    work, plan, world = drawn
    lowered(drawn)
    cluster = cluster_for(world)
    assume(cluster.world_size == world)
    assume(
        not plan.get("parameter_offload")
    )  # weights come from the host as time allows: how many stand at once is its affair
    plan = {**plan, "recompute_method": None, "recompute_layers": None, "recompute_checkpoints": None}
    none, full = (simulate(work, Plan(**{**plan, "recompute": r}), cluster) for r in ("none", "full"))
    assert none.memory.total.max() >= full.memory.total.max() * (1 - 1e-12)
    assert full.hardware_flops > none.hardware_flops
    assert none.model_flops == full.model_flops


@pytest.mark.parametrize(
    "field", ["microbatch_size", "recompute", "zero_stage", "tensor_parallel", "framework", "attention", "dropout"]
)
def test_every_field_has_an_effect(field: str) -> None:
    """A field of the plan changes the program, a price or the memory."""
    values: dict[str, tuple[Any, Any]] = {
        "microbatch_size": (1, 2),
        "recompute": ("none", "full"),
        "zero_stage": (0, 1),
        "tensor_parallel": (1, 2),
        "framework": ("megatron_core", "pytorch_ddp"),
        "attention": ("flash2", "unfused"),
        "dropout": (False, True),
    }
    work = Workload(model=load_model("gpt2_355m"), sequence_length=1024, global_batch_size=32)
    one, two = (simulate(work, Plan(**{field: v}), load_cluster("a100_x8", 8)) for v in values[field])
    assert (one.step_time, one.peak_memory) != (two.step_time, two.peak_memory)


PLAN_FIELDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "sequence_parallel": ({"tensor_parallel": 2}, False, True),
    "context_parallel": ({}, 1, 2),
    "context_parallel_kind": ({"context_parallel": 2}, "ring", "ulysses"),
    "pipeline_parallel": ({}, 1, 2),
    "data_parallel": ({"tensor_parallel": 2}, 4, None),
    "chunks_per_rank": ({"pipeline_parallel": 2}, 1, 2),
    "schedule": ({"pipeline_parallel": 2}, "gpipe", "1f1b"),
    "overlap_gradients": ({}, True, False),
    "overlap_parameters": ({"zero_stage": 1}, True, False),
    "overlap_tensor_parallel": ({"tensor_parallel": 2, "microbatch_size": 8}, True, False),
    "bucket_size": ({}, 1e6, 1e9),
    "gradient_dtype": ({}, "fp32", "bf16"),
    "moment_dtype": ({}, "fp32", "bf16"),
    "splits_master_weights": ({}, False, True),
    "p2p": ({"pipeline_parallel": 2}, "latency", "blocking"),
    "registers": ({"pipeline_parallel": 2}, None, 1),
    "layer_split": ({"pipeline_parallel": 2}, (12, 12), (10, 14)),
    "stages": ({"microbatch_size": 4}, [{"ranks": 4}, {"ranks": 4}], [{"ranks": 4, "tensor_parallel": 2}] * 2),
    "fsdp_prefetch": ({"zero_stage": 3, "framework": "torchtitan"}, 0, 3),
    "reshard_after_forward": ({"zero_stage": 3, "framework": "torchtitan"}, True, False),
    "clip_gradients": ({}, True, False),
    "post_validation": ({"pipeline_parallel": 4, "schedule": "zb_h2"}, True, False),
    "expert_parallel": ({}, 1, 4),
    "expert_tensor_parallel": ({"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2}, None, 1),
    "expert_exchange": ({"expert_parallel": 4}, None, "once_per_node"),
    "tensor_mesh": ({"tensor_parallel": 64, "layout": "tesseract", "microbatch_size": 16}, None, (8, 8, 1)),
    "expert_group_size": ({"expert_exchange": "einsum"}, None, 64),
    "expert_loop": ({}, None, "slices"),
    "expert_permute_fusion": ({}, True, False),
    "expert_imbalance": ({"expert_parallel": 4}, 1.0, 1.5),
    "shard_size": ({"zero_stage": 1}, None, 4),
    "shard_across_experts": ({"zero_stage": 3, "expert_parallel": 2}, False, True),
    "secondary_shard_size": ({"zero_stage": 3}, None, 4),
    "fsdp_unit": ({"zero_stage": 3}, None, 4),
    "fsdp_gather": ({"zero_stage": 3, "pipeline_parallel": 2, "schedule": "gpipe"}, None, "visit"),
    "fsdp_reduce": ({"zero_stage": 3}, None, "step"),
    "reduce_gradients": ({"overlap_gradients": True}, "step", "microbatch"),
    "gradient_exchange": ({}, "all_reduce", "one_bit"),
    "exchange_every": ({"gradient_exchange": "local_sgd"}, 4, 8),
    "exchange_warmup": ({"gradient_exchange": "one_bit"}, None, 0.5),
    "exchange_rank": ({"gradient_exchange": "power_sgd"}, 2, 4),
    "exchange_parts": ({"gradient_exchange": "streaming_diloco"}, 4, 8),
    "exchange_bits": ({"gradient_exchange": "diloco"}, None, 4),
    "exchange_servers": ({"gradient_exchange": "byteps"}, 0, 2),
    "exchange_priority": ({"gradient_exchange": "parameter_server", "exchange_servers": 1}, False, True),
    "replica_layer_splits": (
        {"gradient_exchange": "wave_synchronous", "schedule": "hetpipe", "pipeline_parallel": 2},
        None,
        [[16, 8]] * 4,
    ),
    "exchange_staleness": ({"gradient_exchange": "stale_parameter_server", "exchange_servers": 2}, None, 4),
    "quantized_weights": ({"zero_stage": 3}, False, True),
    "optimizer_in_backward": ({"microbatch_size": 4}, False, True),
    "quantized_gradients": ({"zero_stage": 3, "secondary_shard_size": 4}, False, True),
    "context_parallel_inner": ({"context_parallel": 8, "context_parallel_kind": "hybrid"}, 2, 4),
    "layout": ({"tensor_parallel": 2}, "megatron", "whole_vocabulary"),
    "tensor_parallel_splits": ({"tensor_parallel": 2, "sequence_parallel": True}, None, 2),
    "fused_cross_entropy": ({}, False, True),
    "gradient_accumulation_fusion": ({}, True, False),
    "narrow_gate_input": ({}, False, True),
    "loss_chunks": ({}, None, 8),
    "vocabulary_parallel_loss": ({"tensor_parallel": 2}, True, False),
    "gradient_reduce_dtype": ({}, None, "bf16"),
    "recompute_modules": ({"recompute": "selective"}, None, ("mlp",)),
    "recompute_policy": ({}, "save_qkv_proj", "minimal"),
    "recompute_method": ({"recompute": "full", "recompute_layers": 3}, "block", "every"),
    "recompute_layers": ({"recompute": "full", "recompute_method": "uniform"}, 2, 3),
    "partition_activations": ({"tensor_parallel": 2, "recompute": "full"}, False, True),
    "recompute_checkpoints": ({"recompute": "revolve"}, 2, 3),
    "optimizer_offload": ({}, 0.0, 0.5),
    "optimizer_offload_overlap": ({"optimizer_offload": 1.0}, False, True),
    "activation_offload": ({}, None, 6),
    "parameter_offload": ({"zero_stage": 3}, 0.0, 0.5),
    "cuda_graphs": ({}, "none", "full_iteration"),
    "rank_order": ({"tensor_parallel": 2}, ("tp", "dp", "pp"), ("dp", "tp", "pp")),
}


@pytest.mark.parametrize("field", list(PLAN_FIELDS))
def test_every_dependent_field_has_an_effect(field: str) -> None:
    """The same for fields that need others; data_parallel None is what the world leaves, so it changes nothing."""
    base, first, second = PLAN_FIELDS[field]
    capacity = field == "expert_group_size"
    model = load_model(
        "glam_64b_64e" if capacity else "mixtral_8x7b" if "expert" in field or "gate_" in field else "gpt2_355m"
    )
    work = Workload(model=model, sequence_length=1024, global_batch_size=32)
    nodes = 2 if field.startswith(("exchange_servers", "exchange_priority", "exchange_staleness")) else 1
    cluster = load_cluster("dgx_a100", {"rank_order": 16, "tensor_mesh": 64}.get(field, 8 * nodes))
    if field == "exchange_staleness":  # of nodes that differ
        cluster = replace(cluster, parts=(Part(nodes=((0, 0),), clock=0.5),))
    one, two = (simulate(work, Plan(**{**base, field: v}), cluster) for v in (first, second))
    same = (one.step_time, one.peak_memory) == (two.step_time, two.peak_memory)
    assert same == (field == "data_parallel")


WORKLOAD_FIELDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "model": ({}, load_model("gpt2_355m"), load_model("gpt2_124m")),
    "sequence_length": ({}, 1024, 512),
    "global_batch_size": ({}, 32, 64),
    "precision": ({}, "bf16", "fp16"),
    "optimizer": ({}, "adam", "sgd"),
    "target_length": ({"model": load_model("t5_11b"), "sequence_length": 512}, 0, 64),
    "document_length": ({}, None, 256),
    "document_spread": ({"document_length": 128}, 0.0, 1.0),
}


@pytest.mark.parametrize("field", list(WORKLOAD_FIELDS))
def test_every_field_of_a_workload_has_an_effect(field: str) -> None:
    base, first, second = WORKLOAD_FIELDS[field]
    common = {"model": load_model("gpt2_355m"), "sequence_length": 1024, "global_batch_size": 32} | base
    cluster = load_cluster("dgx_a100", 8)
    one, two = (simulate(Workload(**common | {field: v}), Plan(), cluster) for v in (first, second))
    assert (one.step_time, one.peak_memory) != (two.step_time, two.peak_memory)


def test_the_list_of_workload_fields_is_complete() -> None:
    assert {f.name for f in fields(Workload)} == set(WORKLOAD_FIELDS)


def test_the_list_of_fields_above_is_complete() -> None:
    single = {"microbatch_size", "recompute", "zero_stage", "tensor_parallel", "framework", "attention", "dropout"}
    assert set(Plan.model_fields) == set(PLAN_FIELDS) | single
