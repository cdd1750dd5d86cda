"""Hybrid sharding, FSDP units and visits, ZeRO++: which groups talk, how much, how often, and what stands meanwhile."""

from __future__ import annotations

from collections import Counter
from statistics import mode
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower, resolve
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, Link, Program
from simulator.program.spec import verify
from simulator.report.memory import memory_peaks
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

LLAMA = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=64)
MIXTRAL = Workload(model=load_model("mixtral_8x7b"), sequence_length=4096, global_batch_size=64)


def lowered(world: int = 16, workload: Workload = LLAMA, **plan: Any) -> Program:
    program = lower(workload, Plan(**{"framework": "torchtitan", **plan}), world)
    verify(program)
    return program


def traffic(program: Program) -> Counter[tuple[str, tuple[str, ...]]]:
    """Bytes by (collective, group) on one folded rank."""
    out: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for number in program.item[program.kind == COLLECTIVE]:
        item = program.items[number]
        if isinstance(item, Link) and "norm" not in item.name:
            out[(item.collective, item.group)] += int(item.message)
    return out


def states(program: Program, category: str) -> float:
    return sum(t.bytes for t in program.resident[0].tensors if t.category == category)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_hybrid_sharding_talks_inside_groups_and_adds_shards_between_them(stage: int) -> None:
    whole, groups = lowered(zero_stage=stage), lowered(zero_stage=stage, shard_size=4)
    assert groups.axes == (("tp", 1), ("dp", 4), ("replica", 4), ("pp", 1))
    assert 4 * states(whole, "optimizer_states") == states(groups, "optimizer_states")
    one, two = traffic(whole), traffic(groups)
    inside = sum(size for (kind, group), size in two.items() if kind == "reduce_scatter" and group == ("dp",))
    between = sum(size for (kind, group), size in two.items() if kind == "all_reduce" and group == ("replica",))
    assert one[("reduce_scatter", ("dp",))] == inside
    steps = 4 if stage == 2 else 1  # ZeRO-2 adds shards between groups after the last of four microbatches
    assert between == pytest.approx(inside / 4 / steps, rel=1e-6)
    assert one[("all_gather", ("dp",))] == two[("all_gather", ("dp",))]


def test_the_optimizer_waits_for_both_hops() -> None:
    program = lowered(zero_stage=1, shard_size=4, clip_gradients=False)
    update = int(np.flatnonzero(program.action == 4)[0])
    waits = program.after[program.after_offsets[update] : program.after_offsets[update + 1]]
    groups = {program.items[program.item[w]].group for w in waits if program.kind[w] == COLLECTIVE}
    assert {("dp",), ("replica",)} == groups


def test_a_group_of_all_replicas_is_plain_zero() -> None:
    assert traffic(lowered(zero_stage=1)) == traffic(lowered(zero_stage=1, shard_size=16))


def test_experts_are_sharded_inside_the_same_groups() -> None:
    resolved = resolve(MIXTRAL, Plan(zero_stage=1, expert_parallel=8, shard_size=16), 32)
    assert (16, 2, 2) == (resolved.shard_size, resolved.expert_shard_size, resolved.copies)
    program = lowered(32, MIXTRAL, zero_stage=1, expert_parallel=8, shard_size=16, framework="megatron_core")
    kinds = traffic(program)
    assert {("ep", "dp"), ("dp",), ("replica",)} <= {group for kind, group in kinds if kind != "all_to_all"}
    alone = traffic(lowered(32, MIXTRAL, zero_stage=1, expert_parallel=8, shard_size=8, framework="megatron_core"))
    assert ("reduce_scatter", ("dp",)) not in alone, "one copy of each expert per group: nothing to scatter over"


DENSE, EXPERTS = 1_605_636_096.0, 45_097_156_608.0
"""Weights of Mixtral 8x7B: 32 layers of 32 experts' products (8 x 3 x 4096 x 14336 each), and all others."""


@pytest.mark.parametrize(
    ("groups", "dense", "experts"),
    [
        ({}, 16, 4),  # torchtitan: dp_shard of 16, of which 4 share experts
        ({"shard_size": 8}, 8, 2),
        ({"shard_size": 4}, 4, 1),  # dp_shard of 4, all of which share experts: these lie whole
        ({"shard_across_experts": True}, 4, 4),  # a mesh of dp 4 x ep 4, FSDP over dp
        ({"shard_across_experts": True, "shard_size": 2}, 2, 2),
    ],
)
def test_states_of_experts_and_of_the_rest_lie_where_their_groups_say(
    groups: dict[str, Any], dense: int, experts: int
) -> None:
    program = lowered(16, MIXTRAL, zero_stage=3, expert_parallel=4, **groups)
    held = DENSE / dense + EXPERTS / 4 / experts  # by hand: fp32 weights, and two moments in fp32
    assert states(program, "weights") == pytest.approx(4 * held)
    assert states(program, "optimizer_states") == pytest.approx(8 * held)
    resolved = resolve(MIXTRAL, Plan(zero_stage=3, expert_parallel=4, framework="torchtitan", **groups), 16)
    assert (resolved.shard_size, resolved.copies) == (dense, 16 // dense)
    assert (resolved.expert_shard_size, resolved.expert_copies) == (experts, 4 // experts)


def test_gradients_reach_all_ranks_that_hold_the_same_weights_however_these_are_sharded() -> None:
    microbatches, fp32 = 4, 4
    for groups in (
        {},
        {"shard_size": 4},
        {"shard_across_experts": True},
        {"shard_across_experts": True, "shard_size": 2},
    ):
        program = lowered(16, MIXTRAL, zero_stage=3, expert_parallel=4, **groups)
        sizes, moved = dict(program.axes), Counter[str]()
        for number in program.item[program.kind == COLLECTIVE]:
            item = program.items[number]
            if isinstance(item, Link) and "gradients" in item.name:
                ranks = np.prod([sizes[axis] for axis in item.group])
                moved["experts" if "(experts)" in item.name else "rest"] += item.message * (1 - 1 / ranks)
                assert ("ep" in item.group) <= ("(experts)" not in item.name), "groups of experts have none in common"
        # what a rank sends to add up over r ranks: (r - 1) / r of its gradients, shards between copies counted once
        assert moved["rest"] == pytest.approx(microbatches * fp32 * DENSE * 15 / 16)
        assert moved["experts"] == pytest.approx(microbatches * fp32 * EXPERTS / 4 * 3 / 4)


def test_gathers_across_groups_of_experts_stay_between_these() -> None:
    across = traffic(lowered(16, MIXTRAL, zero_stage=3, expert_parallel=4, shard_across_experts=True))
    plain = traffic(lowered(16, MIXTRAL, zero_stage=3, expert_parallel=4))
    both = plain["all_gather", ("ep", "dp")] + plain["all_gather", ("dp",)]
    assert across["all_gather", ("dp",)] == both
    assert across["all_reduce", ("ep",)] == pytest.approx(4 * 4 * DENSE / 4)


def test_zero_2_adds_what_is_no_expert_between_groups_of_experts_once() -> None:
    plan = {"zero_stage": 2, "expert_parallel": 4, "shard_across_experts": True, "shard_size": 2}
    found = traffic(lowered(16, MIXTRAL, **plan))
    assert found["all_reduce", ("ep", "replica")] == pytest.approx(4 * DENSE / 2)
    assert found["all_reduce", ("replica",)] == pytest.approx(4 * EXPERTS / 4 / 2)


ACROSS: dict[str, Any] = {"shard_across_experts": True, "zero_stage": 3, "expert_parallel": 4}


@pytest.mark.parametrize(
    ("plan", "values", "way"),
    [
        ({"zero_stage": 0}, "zero_stage = 0", "leave shard_across_experts out"),
        ({"expert_parallel": 1}, "expert_parallel = 1", "leave shard_across_experts out"),
        (
            {"expert_parallel": 8, "data_parallel": 8, "pipeline_parallel": 2},
            "makes one group",
            "a smaller expert_parallel",
        ),
        ({"secondary_shard_size": 8}, "secondary_shard_size = 8", "one of the two"),
        ({"shard_size": 8}, "is 8, of 4 such ranks 1 belong", "shard_size = 4"),
        (
            {"shard_across_experts": False, "shard_size": 2},
            "is 2, of 16 such ranks 4",
            "or shard_across_experts = true",
        ),
        ({"zero_stage": 1, "gradient_exchange": "power_sgd", "exchange_rank": 2}, "'power_sgd'", "one of the two"),
        (
            {"zero_stage": 1, "pipeline_parallel": 2, "expert_parallel": 2, "schedule": "chimera"},
            "keeps 2",
            "one_f_one_b",
        ),
    ],
)
def test_shards_across_experts_that_cannot_be_are_refused(plan: dict[str, Any], values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        lower(MIXTRAL, Plan(**{**ACROSS, **plan}), 16)
    assert values in str(caught.value)
    assert way in str(caught.value)


def test_hierarchical_weights_are_gathered_near_in_the_backward() -> None:
    plain, near = lowered(zero_stage=3), lowered(zero_stage=3, secondary_shard_size=8)
    far, inner = (traffic(near)[("all_gather", group)] for group in (("dp", "replica"), ("dp",)))
    assert far + inner == traffic(plain)[("all_gather", ("dp",))]
    assert 0 < inner < far, "the head is gathered once"
    assert states(near, "weights") - states(plain, "weights") == pytest.approx(2 * LLAMA.model.parameters / 8, rel=1e-6)


def test_quantised_messages_are_a_half_and_a_quarter() -> None:
    plain = traffic(lowered(zero_stage=3, gradient_dtype="bf16"))
    narrow = lowered(
        zero_stage=3,
        gradient_dtype="bf16",
        secondary_shard_size=8,
        quantized_weights=True,
        quantized_gradients=True,
    )
    small = traffic(narrow)
    assert 2 * sum(n for (kind, _), n in small.items() if kind == "all_gather") == plain[("all_gather", ("dp",))]
    assert 4 * small[("all_to_all", ("dp",))] == plain[("reduce_scatter", ("dp",))]
    assert 8 * small[("all_to_all", ("replica",))] == pytest.approx(small[("all_to_all", ("dp",))], rel=1e-6)
    labels = {label for block in narrow.blocks for s in block.segments for t, _ in s.pieces for label in t.label}
    assert {"widen gathered weights", "quantise gradients", "add quantised gradients"} <= labels


def test_larger_units_mean_fewer_and_larger_gathers_and_more_memory() -> None:
    def facts(unit: Any) -> tuple[int, float, float]:
        program = lowered(zero_stage=3, fsdp_unit=unit)
        items = [program.items[i] for i in program.item[program.kind == COLLECTIVE]]
        gathers = [i.message for i in items if isinstance(i, Link) and i.collective == "all_gather"]
        peak = simulate(LLAMA, Plan(zero_stage=3, fsdp_unit=unit, framework="torchtitan"), load_cluster("dgx_a100", 16))
        return len(gathers), mode(gathers), peak.peak_memory

    one, four, all_ = facts(1), facts(4), facts("chunk")
    assert 4 * (2 * 32 + 1) == one[0], "embedding and head are one unit, which stays for the backward that follows"
    assert 4 * (2 * 8 + 1) == four[0]
    assert 4 == all_[0]
    assert one[1] < four[1] < all_[1] == 2 * LLAMA.model.parameters
    assert one[2] < four[2] < all_[2]


def test_a_visit_gathers_and_reduces_once() -> None:
    plan = {"zero_stage": 3, "pipeline_parallel": 2, "chunks_per_rank": 2, "schedule": "breadth_first"}
    each, once = (lowered(**plan, fsdp_gather=kind) for kind in ("microbatch", "visit"))
    microbatches = resolve(LLAMA, Plan(**plan), 16).microbatches
    for kind in ("all_gather", "reduce_scatter"):
        assert microbatches * traffic(once)[(kind, ("dp",))] == traffic(each)[(kind, ("dp",))]
    cluster = load_cluster("dgx_a100", 16)
    plan |= {"framework": "torchtitan", "rank_order": ("tp", "pp", "dp")}  # replicas on both nodes
    several = simulate(LLAMA, Plan(**plan, fsdp_gather="microbatch"), cluster)
    visits = simulate(LLAMA, Plan(**plan, fsdp_gather="visit"), cluster)
    assert visits.exposed_communication["dp"] < several.exposed_communication["dp"]
    assert visits.step_time < several.step_time
    held = [p.memory.by_category[:, 5].max() for p in (several, visits)]
    assert held[0] < held[1], "all layers of a chunk stand during a visit"


def test_gradients_once_per_step_stand_unsharded_until_then() -> None:
    each, once = (lowered(zero_stage=3, fsdp_reduce=kind) for kind in ("microbatch", "step"))
    assert 4 * traffic(once)[("reduce_scatter", ("dp",))] == traffic(each)[("reduce_scatter", ("dp",))]
    assert traffic(once)[("all_gather", ("dp",))] == traffic(each)[("all_gather", ("dp",))]
    cluster = load_cluster("dgx_a100", 16)
    gradients = []
    for kind in ("microbatch", "step"):
        p = simulate(LLAMA, Plan(zero_stage=3, fsdp_reduce=kind, framework="torchtitan"), cluster)
        gradients.append(p.memory.by_category[0, 1])
    assert gradients[1] - gradients[0] > 4 * 0.8 * LLAMA.model.parameters


@pytest.mark.parametrize(
    "plan", [{"fsdp_unit": 3}, {"fsdp_gather": "visit"}, {"fsdp_reduce": "step"}, {"shard_size": 4}]
)
def test_what_a_step_gathers_it_drops(plan: dict[str, Any]) -> None:
    program = lowered(zero_stage=3, pipeline_parallel=2, chunks_per_rank=2, schedule="breadth_first", **plan)
    from simulator.costs.price import price
    from simulator.engine import run

    cluster = load_cluster("dgx_a100", 16)
    trace = run(program, price(program, cluster))
    report = memory_peaks(program, trace, (trace.makespan, trace.makespan + 1.0))
    resident = [sum(t.bytes for t in e.tensors) for e in program.resident]
    np.testing.assert_allclose(report.total, resident, rtol=1e-9)


REFUSED = [
    ({"shard_size": 4}, "zero_stage = 0", "leave shard_size out"),
    ({"shard_size": 1, "zero_stage": 1}, "shard_size = 1", "zero_stage = 0"),
    ({"shard_size": 6, "zero_stage": 1}, "is 6", "shard_size = 4"),
    ({"secondary_shard_size": 8, "zero_stage": 1}, "zero_stage = 1", "zero_stage = 3"),
    ({"secondary_shard_size": 16, "zero_stage": 3}, "16 of 16", "leave secondary_shard_size out"),
    ({"secondary_shard_size": 8, "shard_size": 4, "zero_stage": 3}, "shard_size = 4", "one of the two"),
    ({"fsdp_unit": 2}, "zero_stage = 0", "leave fsdp_unit out"),
    ({"fsdp_unit": 33, "zero_stage": 3}, "it has 32", "'chunk'"),
    ({"fsdp_reduce": "step", "zero_stage": 3, "microbatch_size": 4}, "1 microbatch", "leave fsdp_reduce out"),
    ({"quantized_gradients": True, "zero_stage": 3}, "not given", "secondary_shard_size = GPUs of a node"),
    ({"fsdp_gather": "visit", "zero_stage": 3}, "never runs two", "breadth_first"),
]


@pytest.mark.parametrize(("plan", "values", "way"), REFUSED)
def test_what_could_have_no_effect_is_refused(plan: dict[str, Any], values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        lower(LLAMA, Plan(**plan), 16)
    assert values in str(caught.value)
    assert way in str(caught.value)


def test_gradients_may_travel_narrower_than_they_are_kept() -> None:
    for stage in (0, 1, 3):
        kept, sent = (
            lowered(zero_stage=stage, gradient_dtype="fp32", gradient_reduce_dtype=kind) for kind in (None, "bf16")
        )
        kind = "reduce_scatter" if stage else "all_reduce"
        sizes = [traffic(p)[(kind, ("dp",))] for p in (kept, sent)]
        assert sizes[0] == 2 * sizes[1] > 0
        assert states(kept, "gradients") == states(sent, "gradients")
        labels = {label for i in sent.items if not isinstance(i, Link) for t, _ in i.pieces for label in t.label}
        assert "cast gradients to bf16 and back" in labels


@pytest.mark.parametrize(
    ("plan", "values"),
    [({"gradient_reduce_dtype": "fp32", "gradient_dtype": "fp32"}, "both are fp32")],
)
def test_a_format_of_reductions_without_an_effect_is_refused(plan: dict[str, Any], values: str) -> None:
    with pytest.raises(PlanError, match=values):
        resolve(LLAMA, Plan(**plan), 16)
    with pytest.raises(PlanError, match="data_parallel = 1"):
        resolve(LLAMA, Plan(gradient_reduce_dtype="bf16"), 1)


def test_one_gpu_under_zero_3_gathers_and_reduces_nothing() -> None:
    assert not traffic(lowered(1, zero_stage=3, framework="hugging_face_deepspeed"))


def test_shards_of_one_gpu_are_refused_in_words() -> None:
    with pytest.raises(PlanError, match=r"it is 2, of 1 such ranks .* Way out: leave shard_size out, or more replicas"):
        lowered(1, zero_stage=3, shard_size=2, framework="hugging_face_deepspeed")
