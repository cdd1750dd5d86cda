"""PyTorch's own ways to split a model beside our lowering of the same plan: FLOP, products and messages, phase by phase.

What is not the same is written down here, with which of the two is right; a difference that goes away must leave this page too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
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
    scores_of,
    sent_by,
)
from tests.profiles import profile

pytestmark = pytest.mark.slow

EAGER = {"framework": "torchtitan_eager", "recompute": "none", "attention": "sdpa_2025"}
"""The scripts repeat keys for the kernel, as codes did whose release of PyTorch takes no groups."""
SHARDED = EAGER | {"zero_stage": 3}
APART = SHARDED | {"framework": "torchtitan_2025_eager"}
"""The embedding is a unit of its own, norm and head another."""
SPLIT = EAGER | {"tensor_parallel": 2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to split.

    Args:
        words: of the script.
        script: scripts/parallel.py, or a library's own models and functions: torchtitan's (titan.py), transformers' (library.py).
        model: what is other than in the scripts' Llama.
        plan: the same for us.
        world: ranks.
        messages: message (kind, axes, bytes, format) -> how often (theirs, ours), where that is not the same.
        products: whether products are made with the same shapes: a profile may join what the script's model keeps apart.
        total: whether only the bytes of all messages together are the same, less those of `messages`, which are theirs alone.
        scores: whether of attention only scores are compared: it goes round block by block, or repeats keys for every head.
        axes: their name of an axis -> ours.
        ordered: whether messages over the same axes come in the same order.
        microbatches: of a step.
    """

    words: str
    plan: dict[str, Any]
    world: int = 8
    messages: dict[tuple[str, str, float, str], tuple[int, int]] = field(default_factory=dict)
    products: bool = True
    total: bool = False
    scores: bool = False
    axes: dict[str, str] = field(default_factory=dict)
    ordered: bool = True
    microbatches: int = 1
    script: str = "parallel.py:step"
    model: dict[str, Any] = field(default_factory=dict)


LOSS = {
    ("all_reduce", "tp", 8192.0, "fp32"): (3, 0),  # the same three messages of the loss: fp32, which we call bf16
    ("all_reduce", "tp", 8192.0, "bf16"): (0, 3),
}
NORMS = {
    ("all_reduce", "tp", 2048.0, "bf16"): (
        9,
        0,
    ),  # DTensor reduces the gradient of each norm by itself, in its own format
    ("all_reduce", "tp", 36864.0, "fp32"): (0, 1),  # we reduce them together, as Megatron-LM does
}
CASES = {
    "fsdp2": Case(words="--data fsdp2", plan=SHARDED),
    "fsdp2, ends apart": Case(words="--data fsdp2 --ends-apart", plan=APART),
    "fsdp2 recompute": Case(
        words="--data fsdp2 --recompute",
        plan=SHARDED | {"recompute": "full"},
    ),
    "hybrid shard": Case(
        words="--data hsdp --copies 2",
        plan=SHARDED | {"shard_size": 4},
    ),
    "fsdp1": Case(
        words="--data fsdp1",
        plan=SHARDED | {"framework": "pytorch_fsdp"},
        products=False,  # the profile is that of codes whose attention takes groups of heads as they are
    ),
    # buckets are cut at 25 MiB within layers; ours end with a layer
    "ddp": Case(words="--data ddp", plan=EAGER | {"framework": "pytorch_ddp"}, products=False, total=True),
    "tensor": Case(
        words="--tensor 2 --half",
        plan=SPLIT | {"sequence_parallel": False},
        world=2,
        messages=LOSS,
    ),
    "tensor, sequence": Case(
        words="--tensor 2 --sequence --half",
        plan=SPLIT | {"sequence_parallel": True},
        world=2,
        # without FSDP an optimizer of DTensors reduces a norm's gradient at every use of it
        messages=LOSS | NORMS | {("all_reduce", "tp", 2048.0, "bf16"): (27, 0)},
    ),
    # a layer that runs again stops before its last product, and before what its ranks would do with the sum of it; it begins when
    # the first saved tensor is asked for, behind the gather of its output's gradient
    "tensor, sequence, recompute": Case(
        words="--tensor 2 --sequence --half --recompute",
        plan=SPLIT | {"sequence_parallel": True, "recompute": "full"},
        world=2,
        ordered=False,
        messages=LOSS | NORMS | {("all_reduce", "tp", 2048.0, "bf16"): (27, 0)},
    ),
    "fsdp2, tensor, sequence": Case(
        words="--data fsdp2 --tensor 2 --sequence",
        plan=SPLIT | {"zero_stage": 3, "sequence_parallel": True},
        messages=LOSS | NORMS,
    ),
    # a ring's gradients are as many bytes in as many turns as ours: fp32, home included, which we call a reduce_scatter
    "context": Case(
        words="--data fsdp2 --context 4",
        plan=SHARDED | {"context_parallel": 4, "context_parallel_kind": "ring"},
        world=4,
        scores=True,
        axes={"ep": "cp"},
        messages={
            ("all_to_all", "cp", 4194304.0, "fp32"): (16, 0),
            ("reduce_scatter", "cp", 4 / 3 * 4 * 4194304.0, "bf16"): (0, 4),
        },
    ),
}
DEEPSEEK = {
    "family": "deepseek", "attention": "latent", "kv_heads": None, "q_lora_rank": 384, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32, "v_head_dim": 64, "experts": 16, "experts_per_token": 4, "expert_ffn": 512, "shared_expert_ffn": 512,
    "dense_layers": 1, "positions": "rotary",
}  # fmt: skip
COUNTS = {
    ("all_to_all", "ep", 128.0, "fp32"): (3, 0),  # how many rows each expert gets, rank by rank, in 8 bytes a number
    ("all_gather", "ep", 512.0, "bf16"): (0, 3),  # Megatron-LM's way: those of all
}
RELEASE = {"framework": "torchtitan_2026_eager", "recompute": "none", "zero_stage": 3}
CASES |= {
    f"torchtitan{name}": replace(case, script="titan.py:step", plan=RELEASE | case.plan)
    for name, case in {
        "": Case(words="", plan={}),
        ", hybrid shard": Case(words="--copies 2", plan={"shard_size": 4}),
        ", recompute": Case(words="--recompute full", plan={"recompute": "full"}),
        ", tensor": Case(
            words="--tensor 2",
            plan={"tensor_parallel": 2, "sequence_parallel": True},
            messages=LOSS | NORMS,
        ),
        ", context": Case(
            words="--context 2",
            plan={"context_parallel": 2, "context_parallel_kind": "ring"},
            scores=True,
            messages={
                ("all_to_all", "cp", 2097152.0, "fp32"): (8, 0),
                ("reduce_scatter", "cp", 2 * 2 * 2097152.0, "bf16"): (0, 4),
            },
        ),
        "'s Qwen3, context": Case(
            words="--model qwen3 --context 2",
            plan={"context_parallel": 2, "context_parallel_kind": "ring"},
            model={"qk_norm": True},
            scores=True,
            messages={
                ("all_to_all", "cp", 2097152.0, "fp32"): (8, 0),
                ("reduce_scatter", "cp", 2 * 2 * 2097152.0, "bf16"): (0, 4),
            },
        ),
        ", context, tensor": Case(
            words="--context 2 --tensor 2",
            plan={
                "context_parallel": 2,
                "context_parallel_kind": "ring",
                "tensor_parallel": 2,
                "sequence_parallel": True,
            },
            scores=True,
            messages=NORMS
            | {
                ("all_reduce", "tp", 4096.0, "fp32"): (3, 0),
                ("all_reduce", "tp", 4096.0, "bf16"): (0, 3),
                ("all_to_all", "cp", 1048576.0, "fp32"): (8, 0),
                ("reduce_scatter", "cp", 2 * 2 * 1048576.0, "bf16"): (0, 4),
            },
        ),
        "'s Qwen3": Case(
            words="--model qwen3 --tensor 2",
            plan={"tensor_parallel": 2, "sequence_parallel": True},
            model={"qk_norm": True},
            messages=LOSS
            | {
                ("all_reduce", "tp", 2048.0, "bf16"): (9, 0),
                ("all_reduce", "tp", 128.0, "bf16"): (8, 0),
                ("all_reduce", "tp", 38912.0, "fp32"): (0, 1),
            },
        ),
        "'s DeepSeek-V3": Case(words="--model deepseek_v3", plan={}, model=DEEPSEEK),
        "'s DeepSeek-V3, recompute": Case(
            words="--model deepseek_v3 --recompute full",
            plan={"recompute": "full"},
            model=DEEPSEEK,
        ),
        "'s DeepSeek-V3, experts": Case(
            words="--model deepseek_v3 --expert-ranks 4",
            plan={"expert_parallel": 4},
            model=DEEPSEEK,
            messages=COUNTS,
        ),
        # experts are whole, and dealt out over the tensor-parallel ranks too; these gather the input of latent attention and make
        # every latent, so that its weights' gradients are added up, beside those of norms and router
        "'s DeepSeek-V3, experts, tensor": Case(
            words="--model deepseek_v3 --tensor 2 --expert-ranks 4",
            plan={"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 4, "expert_tensor_parallel": 1},
            model=DEEPSEEK,
            scores=True,
            products=False,
            axes={"ep": "dp", "dp": "ep"},
            messages=LOSS
            | {
                ("all_to_all", "ep+tp", 128.0, "fp32"): (3, 0),
                ("all_gather", "ep+tp", 512.0, "bf16"): (0, 3),
                ("all_gather", "tp", 4194304.0, "bf16"): (18, 14),
                ("reduce_scatter", "tp", 4194304.0, "bf16"): (18, 14),
            }
            | {
                (kind, "tp", size, "bf16"): (0, 4)
                for kind in ("all_gather", "reduce_scatter")
                for size in (131072.0, 1048576.0, 1572864.0)
            }
            | {
                ("all_reduce", "tp", size, "bf16"): (times, 0)
                for size, times in ((512.0, 4), (768.0, 4), (2048.0, 9), (32768.0, 3), (589824.0, 4), (786432.0, 4))
            }
            | {("all_reduce", "tp", 11253760.0, "fp32"): (0, 1)},
        ),
    }.items()
}
"""torchtitan's own code."""

LIBRARY = SHARDED | {"framework": "pytorch_fsdp", "fsdp_prefetch": 0}
CASES |= {
    f"transformers{name}": replace(case, script="library.py:step", plan=LIBRARY | case.plan)
    for name, case in {
        "": Case(words="", plan={}),
        ", recompute": Case(words="--recompute", plan={"recompute": "full"}),
        # the embedding is gathered before its backward, too
        ", fsdp2": Case(words="--version 2", plan={"framework": "pytorch_fsdp_ends_apart"}, ordered=False),
        "' Qwen3": Case(words="--model qwen3", plan={}, model={"qk_norm": True}),
    }.items()
}
"""Models of transformers, made ready by accelerate, under whose defaults FSDP1 prefetches nothing in the backward."""


def ends_apart(folder: Path) -> None:
    """Write the profile of the units of accelerate's fsdp2: the embedding is one, norm and head another."""
    profile(folder, "pytorch_fsdp_ends_apart", "pytorch_fsdp", fsdp_root_unit="false")


@pytest.fixture(autouse=True)
def _ends_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_apart(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_step_does_what_ours_does(name: str) -> None:
    does_what_ours_does(CASES[name])


def does_what_ours_does(case: Case) -> None:
    """Hold our lowering of a plan against what a script does."""
    theirs, ours = (
        captured(case.script, case.world, case.words),
        lowered(llama_job(gpus=case.world, model=case.model, microbatches=case.microbatches, **case.plan)),
    )

    for phase in ("forward", "recompute", "backward"):
        left, right = products_of(theirs, phase), products_of(ours, phase)
        if case.scores:
            assert scores_of(ours, phase) == scores_of(theirs, phase)
            left, right = (Counter({k: n for k, n in made.items() if k[0] == "gemm"}) for made in (left, right))
        else:
            assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)
        if case.products:
            assert left == right
    left, right = messages_of(theirs, case.axes), messages_of(ours)
    if case.total:
        assert {key: left.pop(key, 0) for key in case.messages} == {key: n for key, (n, _) in case.messages.items()}
        assert total(right) == pytest.approx(total(left), rel=1e-9)
        return
    different = {key for key in left | right if left[key] != right[key]}
    assert case.messages == {key: (left[key], right[key]) for key in different}
    assert case.ordered == in_the_same_order(sent_by(theirs, case.axes), sent_by(ours), different)


def total(messages: Counter[tuple[str, str, float, str]]) -> float:
    """Return the bytes of all messages."""
    return sum(size * times for (_, _, size, _), times in messages.items())
