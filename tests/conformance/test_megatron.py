"""Megatron-core's own GPTModel beside our lowering under its profile: FLOP, products and messages.

It runs with its local layers: what Transformer Engine and Apex would do (fused norms and attention, sequence parallelism) is missing on
a CPU and stays without a witness.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.comparing import (
    captured,
    flops_of,
    in_the_same_order,
    llama_job,
    lowered,
    messages_of,
    products_of,
    sent_by,
)

pytest.importorskip("megatron.core", reason="the witness is megatron-core: nox -s capture")
pytestmark = pytest.mark.slow

WORLD = 8
PLAN = {"framework": "megatron_core", "attention": "unfused", "sequence_parallel": False, "recompute": "none"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor": ("--tensor 2", PLAN | {"tensor_parallel": 2}),
    "full recompute": ("--tensor 2 --recompute full", PLAN | {"tensor_parallel": 2, "recompute": "full"}),
    "selective recompute": (
        "--tensor 2 --recompute selective",
        PLAN | {"tensor_parallel": 2, "recompute": "selective"},
    ),
    "data": ("", PLAN),
}


def orderless(products: Any) -> Any:
    """Products without the order of operands of scores: query x key is TN there; we call products of two activations NN."""
    out: dict[Any, int] = {}
    for key, times in products.items():
        name = key[:5] if key[0] == "gemm" and key[1] > 1 else key
        out[name] = out.get(name, 0) + times
    return out


@pytest.mark.parametrize("name", CASES)
def test_megatron_core_does_what_its_profile_says(name: str) -> None:
    words, plan = CASES[name]
    theirs, ours = captured("gpt.py:step", WORLD, words), lowered(llama_job(gpus=WORLD, **plan))

    for phase in ("forward", "backward", "recompute"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)
        assert orderless(products_of(theirs, phase)) == orderless(products_of(ours, phase))
    assert by_axes(theirs) == by_axes(ours)
    left, right = messages_of(theirs), messages_of(ours)
    assert in_the_same_order(sent_by(theirs), sent_by(ours), {key for key in left | right if left[key] != right[key]})


def by_axes(program: Any) -> dict[tuple[str, str], float]:
    """Bytes of messages by kind and axes: the norms' buffer and the format of the loss's messages are told apart there only."""
    out: dict[tuple[str, str], float] = {}
    for (kind, axes, size, _), times in messages_of(program).items():
        out[(kind, axes)] = out.get((kind, axes), 0.0) + size * times
    return out


def test_the_distributed_optimizer_reduces_and_gathers_as_many_bytes() -> None:
    theirs = by_axes(captured("gpt.py:step", WORLD, "--distributed-optimizer"))
    ours = by_axes(lowered(llama_job(gpus=WORLD, **PLAN, zero_stage=1)))

    assert ours[("reduce_scatter", "dp")] == pytest.approx(theirs[("reduce_scatter", "dp")], rel=1e-9)


def test_what_the_profile_says_of_layers_is_what_they_do() -> None:
    theirs = products_of(captured("gpt.py:step", WORLD, "--tensor 2"), "forward")

    assert 4 == theirs[("gemm", 1, 2048, 768, 1024, "Product(order='TN')")]  # joined_qkv
    assert 4 == theirs[("gemm", 1, 2048, 2816, 1024, "Product(order='TN')")]  # joined_gate


EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_ffn": 1408, "capacity_factor": 1.0}


def test_experts_with_a_capacity_do_what_the_profile_says() -> None:
    """Expert by expert there, as grouped products here; the choice's weights travel in bf16 there, in fp32 here (moe_router_dtype)."""
    theirs = captured("gpt.py:step", WORLD, "--experts 8 --expert-ranks 4")
    ours = lowered(llama_job(gpus=WORLD, model=EXPERTS, **PLAN, expert_parallel=4))

    for phase in ("forward", "backward"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)
        assert one_by_one(theirs, phase) == one_by_one(ours, phase)
    weights, there, here = ("all_to_all", "ep"), by_axes(theirs), by_axes(ours)
    assert 8 * 4096 * 2 == here.pop(weights) - there.pop(weights)
    assert there == here


def one_by_one(program: Any, phase: str) -> dict[Any, int]:
    """Products with those of two experts told apart; otherwise as `orderless`."""
    apart: dict[Any, int] = {}
    for key, times in products_of(program, phase).items():
        name, count = ((key[0], 1, *key[2:]), 2) if key[1] == 2 else (key, 1)
        apart[name] = apart.get(name, 0) + times * count
    return dict(orderless(apart))
