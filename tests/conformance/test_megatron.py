"""Megatron-core's own GPTModel beside our lowering under its profile: FLOP, products and messages.

It runs with its local layers: what Transformer Engine and Apex would do (fused norms and attention, 8 bits) is missing on a CPU and stays
without a witness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conformance.comparing import (
    by_axes,
    captured,
    flops_of,
    in_the_same_order,
    llama_job,
    lowered,
    messages_of,
    products_of,
    sent_by,
)
from tests.conformance.test_plans import DEEPSEEK

pytestmark = pytest.mark.slow

WORLD = 8
PLAN = {"framework": "megatron_core", "attention": "unfused", "sequence_parallel": False, "recompute": "none"}
SPLIT = PLAN | {"tensor_parallel": 2}
SEQUENCE = SPLIT | {"sequence_parallel": True}
LATENT = {key: value for key, value in DEEPSEEK.items() if "expert" not in key and key != "dense_layers"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to split.

    Args:
        words: of scripts/gpt.py.
        plan, model: the same for us.
        bytes: (kind, axes) -> bytes that they send beside what ours sends, for the reason that stands beside the case.
        ordered: whether messages over the same axes come in the same order.
    """

    words: str
    plan: dict[str, Any] = field(default_factory=lambda: PLAN)
    model: dict[str, Any] = field(default_factory=dict)
    bytes: dict[tuple[str, str], float] = field(default_factory=dict)
    ordered: bool = True


def selective(*modules: str) -> dict[str, Any]:
    return {"recompute": "selective", "recompute_modules": list(modules)}


KEYS = 2048 * 32 * 2.0
"""Bytes of the keys' rotary part."""
CASES = {
    "data": Case(words=""),
    "tensor": Case(words="--tensor 2", plan=SPLIT),
    "tensor, full recompute": Case(words="--tensor 2 --recompute full", plan=SPLIT | {"recompute": "full"}),
    "tensor, selective recompute": Case(
        words="--tensor 2 --recompute selective", plan=SPLIT | {"recompute": "selective"}
    ),
    "tensor, sequence": Case(words="--tensor 2 --sequence", plan=SEQUENCE),
    "tensor, sequence, full recompute": Case(
        words="--tensor 2 --sequence --recompute full", plan=SEQUENCE | {"recompute": "full"}
    ),
    "tensor, sequence, recompute of the MLP": Case(
        words="--tensor 2 --sequence --recompute selective --modules mlp", plan=SEQUENCE | selective("mlp")
    ),
    "latent": Case(words="--latent", model=LATENT),
    # the rotary part of the keys is gathered first there, before the latents; here where it is joined to the rest
    "latent, tensor, sequence": Case(
        words="--latent --tensor 2 --sequence", plan=SEQUENCE, model=LATENT, ordered=False
    ),
    # and there before what runs again, so that it is gathered once
    "latent, tensor, sequence, recompute of three modules": Case(
        words="--latent --tensor 2 --sequence --recompute selective --modules core_attn,layernorm,mla_up_proj",
        plan=SEQUENCE | selective("core_attn", "layernorm", "mla_up_proj"),
        model=LATENT,
        ordered=False,
        bytes={("all_gather", "tp"): -4 * KEYS},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_megatron_core_does_what_its_profile_says(name: str) -> None:
    case = CASES[name]
    theirs, ours = (
        captured("gpt.py:step", WORLD, case.words),
        lowered(llama_job(gpus=WORLD, model=case.model, **case.plan)),
    )

    for phase in ("forward", "backward", "recompute"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)
        assert products_of(theirs, phase) == products_of(ours, phase)
    there, here = by_axes(theirs), by_axes(ours)
    assert case.bytes == {key: there[key] - here[key] for key in there | here if there[key] != here[key]}
    left, right = messages_of(theirs), messages_of(ours)
    different = {key for key in left | right if left[key] != right[key]}
    assert case.ordered == in_the_same_order(sent_by(theirs), sent_by(ours), different)


def test_the_distributed_optimizer_reduces_and_gathers_as_many_bytes() -> None:
    theirs = by_axes(captured("gpt.py:step", WORLD, "--distributed-optimizer --update"))
    ours = by_axes(lowered(llama_job(gpus=WORLD, **PLAN, zero_stage=1)))

    assert theirs == ours


def test_context_parallel_ranks_do_all_but_attention_as_the_profile_says() -> None:
    """Attention stands in: what its ring computes and sends is Transformer Engine's."""
    theirs = captured("gpt.py:step", WORLD, "--tensor 2 --sequence --context 2")
    ours = lowered(llama_job(gpus=WORLD, **SEQUENCE, context_parallel=2))

    for phase in ("forward", "backward"):
        left, right = ({key: n for key, n in products_of(p, phase).items() if key[1] == 1} for p in (theirs, ours))
        assert left == right
    there, here = by_axes(theirs, dp="cp+dp"), by_axes(ours)
    assert there == {key: size for key, size in here.items() if key[1] != "cp"}


def test_what_the_profile_says_of_layers_is_what_they_do() -> None:
    theirs = products_of(captured("gpt.py:step", WORLD, "--tensor 2"), "forward")

    assert 4 == theirs[("gemm", 1, 2048, 768, 1024, "Product(order='TN')")]  # joined_qkv
    assert 4 == theirs[("gemm", 1, 2048, 2816, 1024, "Product(order='TN')")]  # joined_gate


EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_ffn": 1408, "capacity_factor": 1.0}
ROWS = 4096 * 2.0
"""Bytes of the weights of a rank's choices in bf16; ours are fp32, as with moe_router_dtype = fp32."""


@pytest.mark.parametrize(
    ("words", "plan", "differs"),
    [
        ("--expert-ranks 4", PLAN | {"expert_parallel": 4}, {("all_to_all", "ep"): -8 * ROWS}),
        (
            "--expert-ranks 4 --recompute selective --modules moe",
            PLAN | {"expert_parallel": 4} | selective("moe"),
            {("all_to_all", "ep"): -12 * ROWS},
        ),
        # ranks that split experts gather the weights beside the rows there, and add up how often experts were chosen, for their loss
        (
            "--expert-ranks 2 --tensor 2 --sequence",
            SEQUENCE | {"expert_parallel": 2},
            {
                ("all_to_all", "ep"): -8 * ROWS / 2,
                ("all_gather", "tp"): 4 * ROWS,
                ("reduce_scatter", "tp"): 4 * ROWS,
                ("all_reduce", "tp"): 4 * 8 * 8.0,
            },
        ),
    ],
    ids=["experts", "recompute", "tensor"],
)
def test_experts_with_a_capacity_do_what_the_profile_says(
    words: str, plan: dict[str, Any], differs: dict[tuple[str, str], float]
) -> None:
    """Expert by expert there, as grouped products here; the choice's weights travel in bf16 there, in fp32 here (moe_router_dtype)."""
    theirs = captured("gpt.py:step", WORLD, f"--experts 8 {words}")
    ours = lowered(llama_job(gpus=WORLD, model=EXPERTS, **plan))

    for phase in ("forward", "backward", "recompute"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)
        assert one_by_one(theirs, phase) == one_by_one(ours, phase)
    there, here = by_axes(theirs), by_axes(ours)
    assert differs == {key: there[key] - here[key] for key in there | here if there[key] != here[key]}


def one_by_one(program: Any, phase: str) -> dict[Any, int]:
    """Products with those of several experts told apart."""
    apart: dict[Any, int] = {}
    for key, times in products_of(program, phase).items():
        name, count = ((key[0], 1, *key[2:]), key[1]) if 1 < key[1] < 8 else (key, 1)
        apart[name] = apart.get(name, 0) + times * count
    return apart
