"""Gradients of weights that lie whole on tensor-parallel ranks which each see a part of the tokens, or of the heads."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower, resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.plan.plan import Plan
from simulator.program.program import Link, Segment
from simulator.simulation import simulate
from simulator.testing.block_contract import small_model
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

HIDDEN = 64
BIASED = {"norm": "layer_norm", "positions": "learned", "gated_mlp": False, "linear_bias": True, "qkv_bias": True}
EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_ffn": 64}
LATENT = {"attention": "latent", "kv_heads": 8, "head_dim": 24} | dict(
    qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, kv_lora_rank=32, q_lora_rank=48
)


def costs(model: dict[str, Any], **plan: Any) -> dict[str, LayerCost]:
    work = Workload(model=small_model(**model), sequence_length=128, global_batch_size=8)
    return layer_costs(work, resolve(work, Plan(framework="megatron_core", **plan), 8))


def added(cost: LayerCost) -> float:
    """Weights of whose gradients the ranks that split layers have a term each."""
    return sum(count for _, _, count in cost.summed)


@pytest.mark.parametrize(
    ("model", "kind", "whole"),
    [
        ({}, "layer", 2 * HIDDEN),
        ({}, "embedding", 0),
        ({}, "head", HIDDEN),
        (BIASED, "layer", 4 * HIDDEN + 2 * HIDDEN),
        (BIASED, "embedding", 128 * HIDDEN),
        (EXPERTS, "moe layer", 2 * HIDDEN + 8 * HIDDEN),
        (LATENT, "layer", 2 * HIDDEN + HIDDEN * (48 + 32 + 8) + 48 + 32),
    ],
    ids=["norms", "table", "last norm", "biases behind sums", "positions", "router", "latents"],
)
def test_under_sequence_parallelism_what_lies_whole_is_added_up(model: dict[str, Any], kind: str, whole: int) -> None:
    assert whole == added(costs(model, tensor_parallel=4, sequence_parallel=True)[kind])
    assert 0 == added(costs(model, tensor_parallel=4)[kind])
    assert 0 == added(costs(model)[kind])


def test_norms_of_heads_see_a_part_of_the_heads_on_every_rank() -> None:
    assert 2 * 8 == added(costs({"qk_norm": True}, tensor_parallel=4)["layer"])
    assert 0 == added(costs({"qk_norm": True})["layer"])


def test_numbers_of_state_space_heads_lie_with_their_heads() -> None:
    model = {
        "mixers": ["mamba2"],
        "ssm_heads": 8,
        "ssm_head_dim": 16,
        "ssm_state": 16,
        "ssm_groups": 4,
        "conv_width": 4,
    }
    one, four = (costs(model, tensor_parallel=t)["mamba2 layer"] for t in (1, 4))
    norms = 2 * HIDDEN
    assert (one.parameters - norms) / 4 == four.parameters - norms
    assert 0 == added(four)


@pytest.mark.parametrize(("clips", "summed"), [(True, 1), (False, 1)])
def test_they_are_added_up_before_the_update(clips: bool, summed: int) -> None:
    work = Workload(model=small_model(), sequence_length=128, global_batch_size=8)
    plan = Plan(framework="megatron_core", tensor_parallel=4, sequence_parallel=True, clip_gradients=clips)
    tables = [table for i in lower(work, plan, 8).items if isinstance(i, Segment) for table, _ in i.pieces]
    found = [t for t in tables if "all_reduce" in t.work and "optimizer" in t.phase]
    assert summed == len(found)
    assert (2 * 2 * HIDDEN + HIDDEN) * 4.0 == sum(float(t.message.sum()) for t in found)


@pytest.mark.parametrize("model", [BIASED, {}, LATENT, {"qk_norm": True}])
def test_every_tensor_of_a_layer_has_weights_and_together_they_are_all(model: dict[str, Any]) -> None:
    for cost in costs(model, tensor_parallel=4).values():
        assert 0 < min(cost.tensors)
        assert cost.parameters == sum(cost.tensors)


@pytest.mark.parametrize("model", ["gpt2_355m", "llama3_2_1b"])
@pytest.mark.parametrize(("stage", "overlap"), [(0, True), (0, False), (1, True), (2, True)])
def test_a_tied_table_is_reduced_and_gathered_once(model: str, stage: int, overlap: bool) -> None:
    found = load_model(model)
    work = Workload(model=found, sequence_length=512, global_batch_size=8)
    plan = Plan(zero_stage=stage, overlap_gradients=overlap, overlap_parameters=overlap if stage else None)
    program = simulate(work, plan, load_cluster("dgx_h100", 8)).program
    links = [program.items[number] for number in program.item.tolist()]
    sent = {
        what: sum(
            link.message for link in links if isinstance(link, Link) and what in link.name and "norm" not in link.name
        )
        for what in ("gradients", "weights")
    }
    assert sent["gradients"] == pytest.approx(4.0 * found.parameters, rel=0.001)
    assert sent["weights"] == pytest.approx(2.0 * found.parameters if stage else 0.0, rel=0.001)
