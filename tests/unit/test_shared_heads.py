"""Tensor parallelism beyond the key/value heads: ranks that share a head hold it whole and add its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import simulator
from simulator.errors import PlanError
from simulator.lowering import lower, resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.partition.compose import compose
from simulator.plan.plan import Plan
from simulator.program.program import Program, Segment
from simulator.program.spec import verify
from simulator.testing.block_contract import small_model
from simulator.workload.graph import Dim
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

HIDDEN, HEADS, WIDTH, LAYERS, LENGTH = 64, 8, 8, 2, 128
EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_ffn": 64}


def work(kv_heads: int, **model: Any) -> Workload:
    return Workload(model=small_model(kv_heads=kv_heads, **model), sequence_length=LENGTH, global_batch_size=64)


def layer(kv_heads: int, t: int, framework: str = "megatron_core", **model: Any) -> LayerCost:
    given = work(kv_heads, **model)
    kernel = "sdpa_2025" if framework == "torchtitan" else None
    plan = Plan(framework=framework, tensor_parallel=t, recompute="none", attention=kernel)
    return layer_costs(given, resolve(given, plan, 8))["layer"]


def shared(cost: LayerCost) -> float:
    """Weights that ranks share which share a key/value head."""
    return sum(count for what, _, count in cost.summed if what == "key and value")


def program(kv_heads: int, model: dict[str, Any] | None = None, gpus: int = 8, **plan: Any) -> Program:
    made = lower(work(kv_heads, **(model or {})), Plan(framework="megatron_core", **plan), gpus)
    verify(made)
    return made


def summed(made: Program) -> list[tuple[float, tuple[str, ...]]]:
    """(message, mesh axes) of what is added over ranks that share a head, before the update."""
    tables = [t for item in made.items if isinstance(item, Segment) for t, _ in item.pieces]
    return [
        (float(message), group)
        for table in tables
        for label, message, group in zip(table.label, table.message, table.group, strict=True)
        if label == "key and value gradients all_reduce"
    ]


@pytest.mark.parametrize(("kv_heads", "t"), [(1, 2), (1, 8), (2, 4), (2, 8), (4, 8), (4, 4), (8, 8), (4, 2)])
@pytest.mark.parametrize("framework", ["megatron_core", "torchtitan"])
def test_a_rank_has_whole_heads_and_one_at_least(kv_heads: int, t: int, framework: str) -> None:
    """Weights, products, kept keys and gradients are those of the heads that it has; queries are divided as ever."""
    mine, cost = max(1, kv_heads // t), layer(kv_heads, t, framework)
    one = layer(kv_heads, 1, framework)
    projected = HIDDEN * WIDTH * (HEADS + 2 * kv_heads)
    rest = one.parameters - projected - 2 * HIDDEN
    columns = (HEADS // t + 2 * mine) * WIDTH

    assert HIDDEN * columns + rest / t + 2 * HIDDEN == cost.parameters
    assert cost.parameters == sum(cost.tensors)
    forward = [cost.forward.shape[i] for i, label in enumerate(cost.forward.label) if label == "qkv"]
    assert columns == sum(int(shape[2]) for shape in forward)
    kept = {tensor.name: tensor.bytes for tensor in cost.saved}
    heads = HEADS // t if framework == "torchtitan" else mine  # it writes keys and values once for every query head
    assert [LENGTH * heads * WIDTH * 2.0] * 2 == [kept["keys"], kept["values"]]
    assert LENGTH * HEADS / t * WIDTH * 2.0 == kept["queries"]
    assert (2 * HIDDEN * WIDTH * mine if t > kv_heads else 0) == shared(cost)


def test_queries_and_keys_that_one_kernel_turns_are_counted_apart() -> None:
    turned = {t: layer(2, t).forward for t in (2, 8)}
    read = {t: float(table.read[table.label.index("rotary")]) for t, table in turned.items()}
    each = LENGTH * WIDTH * 2.0
    assert {2: each * (4 + 1), 8: each * (1 + 1)} == read


@pytest.mark.parametrize(
    ("kv_heads", "plan", "axes", "group"),
    [
        (1, {"tensor_parallel": 8}, {"tp": 8}, ("tp",)),
        (2, {"tensor_parallel": 8}, {"tp": 4, "heads": 2}, ("tp",)),
        (4, {"tensor_parallel": 8, "sequence_parallel": True}, {"tp": 2, "heads": 4}, ("tp",)),
        (2, {"tensor_parallel": 4, "pipeline_parallel": 2}, {"tp": 2, "heads": 2, "pp": 2}, ("tp",)),
    ],
)
def test_gradients_are_added_over_the_ranks_that_share_a_head(
    kv_heads: int, plan: dict[str, Any], axes: dict[str, int], group: tuple[str, ...]
) -> None:
    made = program(kv_heads, **plan)
    assert axes == {name: size for name, size in made.axes if size > 1}
    layers = LAYERS // plan.get("pipeline_parallel", 1)
    message = layers * 2 * HIDDEN * WIDTH * 4.0
    assert {(message, group)} == set(summed(made))


def test_nothing_is_added_where_every_rank_has_heads_of_its_own() -> None:
    for kv_heads, t in ((8, 8), (4, 4), (2, 1)):
        made = program(kv_heads, tensor_parallel=t)
        assert [] == summed(made)
        assert "heads" not in dict(made.axes)


def test_the_gradients_of_shared_heads_sum_up_to_those_of_one_rank() -> None:
    """Scores of 8 query heads against 2 key heads on 8 ranks; 4 consecutive ranks have the same key head."""
    layout, random = compose("megatron", 8), np.random.default_rng(3)
    heads, keys = Dim("heads", 8), Dim("kv_heads", 2, serves="heads")
    q, k, grad = (random.standard_normal((n, 4)) for n in (8, 2, 8))
    whole = np.stack([(grad * q)[:4].sum(0), (grad * q)[4:].sum(0)])  # scores_h = q_h k_(h // 4)

    mine, shared = layout.local((heads,))[0].size, layout.shared((keys,), "tensor")
    assert (1, 1, 4) == (mine, layout.local((keys,))[0].size, shared)
    terms = [grad[r : r + mine] * q[r : r + mine] for r in range(8)]
    for r in range(8):
        group = range(r // shared * shared, (r // shared + 1) * shared)
        assert np.allclose(whole[r // shared], sum(terms[i][0] for i in group))
        assert not np.allclose(whole[r // shared], terms[r][0])
    assert k.shape == whole.shape


@pytest.mark.parametrize(
    "plan",
    [
        {"sequence_parallel": True, "expert_parallel": 4},
        {"sequence_parallel": True, "expert_parallel": 8, "expert_tensor_parallel": 1},
        {"sequence_parallel": True, "expert_parallel": 4, "zero_stage": 1},
    ],
)
def test_experts_go_with_shared_heads(plan: dict[str, Any]) -> None:
    made = program(2, EXPERTS, 32, tensor_parallel=8, **plan)
    assert 32 == np.prod([size for _, size in made.axes])
    assert summed(made)


def test_every_feature_runs_on_shared_heads() -> None:
    given, cluster = work(2), simulator.load_cluster("dgx_h100").resized(8)
    shared = simulator.simulate(given, Plan(tensor_parallel=8), cluster)
    own = simulator.simulate(work(8), Plan(tensor_parallel=8), cluster)
    assert shared.step_time > own.step_time
    assert shared.breakdown["tp"] > own.breakdown["tp"]
    for more in (
        {"zero_stage": 3, "clip_gradients": False},
        {"attention": "unfused"},
        {"context_parallel": 2},
        {"schedule": None},
    ):
        t = 4 if {"context_parallel", "zero_stage"} & set(more) else 8
        assert simulator.simulate(given, Plan(tensor_parallel=t, **more), cluster).step_time > 0  # type: ignore[arg-type]


def test_palm_is_trained_as_it_was() -> None:
    """12-way model parallelism with one key/value head, 256 replicas on each of two pods (arXiv 2204.02311, section 4)."""
    given = Workload(model=load_model("palm_540b"), sequence_length=2048, global_batch_size=2048)
    resolved = resolve(given, Plan(tensor_parallel=12, data_parallel=512, zero_stage=3), 6144)
    assert ("tp",) == resolved.groups.heads
    cost = layer_costs(given, resolved)["layer"]
    model = given.model
    assert 2 * model.hidden * model.head_dim == shared(cost)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "t", "message"),
    [
        (
            12,
            6,
            4,
            r"the model's kv_heads, or be a multiple of them, but 6 / 4 is no whole number .* tensor_parallel = 3",
        ),
        (
            24,
            4,
            6,
            r"the model's kv_heads, or be a multiple of them, but 4 / 6 is no whole number .* tensor_parallel = 4",
        ),
        (8, 2, 16, r"tensor_parallel must divide the model's heads, but 8 / 16"),
    ],
)
def test_heads_that_cannot_be_shared_out_evenly_are_refused(heads: int, kv_heads: int, t: int, message: str) -> None:
    given = work(kv_heads, heads=heads, hidden=heads * 8, ffn=heads * 48)
    with pytest.raises(PlanError, match=message):
        resolve(given, Plan(tensor_parallel=t), t)


def test_an_axis_is_not_cut_for_heads_and_for_experts() -> None:
    given = work(2, **EXPERTS)
    plan = Plan(tensor_parallel=8, sequence_parallel=True, expert_parallel=4, expert_tensor_parallel=1)
    with pytest.raises(
        PlanError, match=r"also deal experts out over a part.*Way out: leave expert_tensor_parallel out"
    ):
        resolve(given, plan, 8)
