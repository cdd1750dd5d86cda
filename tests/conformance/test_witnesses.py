"""Switches of framework profiles that a recorded run of the code itself witnesses; their sources say "witnessed: CODE VERSION".

A profile may say so of no switch that has no entry here.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from simulator.capture.record import BEFORE, Capture
from simulator.lowering.steps.assign import ends_as_layers
from simulator.plan.framework import load_framework
from simulator.program.calls import read_call
from tests.conformance.comparing import captured, messages_of, pipeline, products_of, recorded
from tests.conformance.test_pipelines import TITAN as PIPES
from tests.package_sources import ROOT

DEEPSEEK = "--model deepseek_v3 --expert-ranks 4"
TORCH, MEGATRON, TITAN = "torch 2.13.0", "megatron-core 0.16.1", "torchtitan 0.3.0"
LIBRARY, DEEPSPEED = "transformers 5.23.0", "deepspeed 0.19.8"


def ddp() -> Capture:
    return recorded("parallel.py:step", 8, "--data ddp")


def megatron() -> Capture:
    return recorded("gpt.py:step", 8, "--tensor 2")


def titan(words: str = "") -> Capture:
    return recorded("titan.py:step", 8, words)


def repeats_keys(script: str, words: str) -> bool:
    """Whether attention sees as many keys and values as queries."""
    kernels = [key for key in products_of(captured(script, 8, words), "forward") if key[0] == "attention"]
    return all("kv_heads=16" in str(key[-1]) for key in kernels)


def overlaps(capture: Capture) -> bool:
    """Whether gradients are on their way while backwards still compute."""
    sent = [
        n
        for n, e in enumerate(capture.events)
        if e.communicates and not e.waits and capture.groups[e.group].ranks[-1] > 1
    ]
    last = max(n for n, e in enumerate(capture.events) if e.phase == "backward" and e.work == "gemm")
    return sent[0] < last


def reduced_in(capture: Capture) -> str:
    return next(e.dtype for e in capture.events if e.phase == "backward" and e.work == "all_reduce")


def standing_gradients(capture: Capture) -> float:
    """Bytes of gradients that stand through the whole step, over those of fp32 gradients of all parameters."""
    standing = [s.bytes for s in capture.storages if s.category == "gradients" and s.born == BEFORE and s.died is None]
    return sum(standing) / (4.0 * capture.parameters)


def divides_gradients(capture: Capture) -> bool:
    """Whether the buffer of all fp32 gradients is multiplied in place before replicas add it up."""
    size = 4.0 * capture.parameters
    times = [
        n for n, e in enumerate(capture.events) if e.name in ("aten.mul_", "aten.div_") and e.read == e.written >= size
    ]
    sent = [n for n, e in enumerate(capture.events) if e.communicates and e.message >= size]
    return bool(times) and times[0] < sent[0]


def fresh_gradients(capture: Capture) -> bool:
    """Whether the gradients of most parameters are made by the backward and still there when it ends, to be dropped after the update."""
    end = max(n for n, e in enumerate(capture.events) if e.phase == "backward" and e.work != "all_reduce")
    made = [s.bytes for s in capture.storages if s.category == "gradients" and 0 <= s.born <= end <= (s.died or end)]
    return sum(made) > capture.parameters


def deals_layers() -> str:
    """By which of our rules stages get their layers."""
    module = "torchtitan.distributed.pipeline_parallel"
    deal = pytest.importorskip(
        module, reason="it is run, not recorded: nox -s capture"
    )._generate_llm_fqn_per_model_part
    for layers, stages in itertools.product((4, 16, 32, 61, 80, 126), (2, 4, 8, 16)):
        if stages <= layers // 2:
            theirs = [sum(name.startswith("layers.") for name in part) for part in deal(stages, layers, 1, 1)]
            if theirs != ends_as_layers(layers, stages):
                return "evenly"
    return "ends_as_layers"


def hides_input_gradients(capture: Capture) -> bool:
    """Whether weights' gradients are computed while input gradients are reduced over the tensor axis."""
    events = capture.events
    sent = [
        n for n, e in enumerate(events) if e.phase == "backward" and e.work == "all_reduce" and e.path and not e.waits
    ]
    return any(events[n + 1].work == "gemm" and n not in events[n + 1].after for n in sent if n + 1 < len(events))


def plain() -> Capture:
    """A model of transformers."""
    return recorded("library.py:step", 8, "")


def trainer(words: str) -> Capture:
    """A step of the Trainer of transformers."""
    return recorded("trainer.py", 8, words)


def reductions(capture: Capture) -> int:
    """Messages in which gradients are reduced to shards."""
    return sum(e.work == "reduce_scatter" for e in capture.events)


def casts_weights(capture: Capture) -> bool:
    """Whether the seven weights of a layer are cast in its forward, and the copies kept for its backward."""
    kept = [s for s in capture.storages if s.category == "activations" and s.born >= 0 and s.name.count("x") == 1]
    made = [capture.events[s.born] for s in kept]
    return sum(e.name == "aten._to_copy" and "layers.1." in e.path for e in made) == 7


def clips(capture: Capture) -> bool:
    """Whether gradients are scaled by their norm before the update."""
    names = [e.name for e in capture.events if e.phase == "optimizer"]
    return names.index("aten._foreach_norm") < names.index("aten._foreach_mul_") < names.index("aten._fused_adamw_")


def run_by(path: str, capture: Capture | None = None) -> list[str]:
    """Operators of the forward of a module of the second layer, in order, without their namespace."""
    events = (capture or plain()).events
    return [e.name.partition(".")[2] for e in events if e.phase == "forward" and e.path.endswith(f"layers.1{path}")]


def products(path: str, capture: Capture | None = None) -> int:
    """Products of the forward of the parts of a module of the second layer."""
    events = (capture or plain()).events
    return sum(e.work == "gemm" and f"layers.1.{path}" in e.path for e in events if e.phase == "forward")


def drops_out(capture: Capture) -> bool:
    return any("dropout" in e.name or "bernoulli" in e.name for e in capture.events)


def zero(words: str) -> Capture:
    return recorded("zero.py:step", 8, words)


def gathered(capture: Capture) -> list[float]:
    """Messages of the gathers of a step [B]."""
    return [e.message for e in capture.events if e.work == "all_gather"]


def grouped_products(capture: Capture) -> int:
    """Grouped products of the forward of a layer with experts."""
    return sum("layers.1." in e.path and e.name == "aten._grouped_mm" for e in capture.events if e.phase == "forward")


def kept_by(capture: Capture, path: str) -> set[tuple[str, float]]:
    """What operators of a module of the second layer make and a backward reads: (operator, bytes)."""
    made = [(capture.events[s.born], s.bytes) for s in capture.storages if s.category == "activations" and s.born >= 0]
    return {(e.name, size) for e, size in made if e.path == f"layers.1.{path}"}


def extent_of_recompute(capture: Capture) -> str:
    """How much of a layer runs again, by its products: all of them, or all but the last, which nothing of the layer reads."""
    run = {
        phase: sum(e.work == "gemm" and "layers" in e.path for e in capture.events if e.phase == phase)
        for phase in ("forward", "recompute")
    }
    return {run["forward"]: "layer", run["forward"] - 4: "until_kept"}[run["recompute"]]


def losses(capture: Capture) -> list[str]:
    """Operators of a forward that walk memory as a loss does, without their namespace."""
    found = [e for e in capture.events if e.phase == "forward" and "'loss'" in str(read_call(e.call, ""))]
    return [e.name.partition(".")[2] for e in found]


def joined_and_divided(capture: Capture) -> bool:
    """Whether the gradients of every unit are joined, divided in place, reduced, and divided again."""
    names = [e.name for e in capture.events if e.phase == "backward"]
    sent = reductions(capture)
    return sent == names.count("aten.cat") and names.count("aten.div_") == 2 * sent


def copies_before_scatters(capture: Capture) -> bool:
    """Whether every scatter of tokens is of something that was joined for it."""
    events = capture.events
    sent = [n for n, e in enumerate(events) if e.work == "reduce_scatter" and len(capture.groups[e.group].ranks) == 2]
    return bool(sent) and all(events[n - 1].name == "aten.cat" for n in sent)


WITNESSES: dict[tuple[str, str], tuple[str, Callable[[], Any]]] = {
    ("pytorch_ddp", "gradients_overlap"): (TORCH, lambda: overlaps(ddp())),
    ("pytorch_ddp", "gradient_dtype"): (TORCH, lambda: reduced_in(ddp())),
    ("pytorch_ddp", "keeps_buckets"): (TORCH, lambda: abs(standing_gradients(ddp()) - 1) < 1e-3),
    ("pytorch_ddp", "drops_gradients"): (TORCH, lambda: fresh_gradients(ddp())),
    ("pytorch_ddp", "updates_in_lists"): (TORCH, lambda: any("_foreach_" in e.name for e in ddp().events)),
    ("pytorch_ddp", "in_place_cross_entropy"): (
        TORCH,
        lambda: not any(e.name == "aten._log_softmax" for e in ddp().events),
    ),
    ("pytorch_ddp", "torch_loss"): (TORCH, lambda: losses(ddp()) == ["_log_softmax", "nll_loss_forward"]),
    ("pytorch_fsdp", "flat_units"): (
        TORCH,
        lambda: joined_and_divided(recorded("parallel.py:step", 8, "--data fsdp1")),
    ),
    ("torchtitan_eager", "copies_sequence_parts"): (TITAN, lambda: copies_before_scatters(titan("--tensor 2"))),
    ("pytorch_fsdp", "recompute_extent"): (
        TORCH,
        lambda: extent_of_recompute(recorded("parallel.py:step", 8, "--data fsdp2 --recompute")),
    ),
    ("torchtitan_eager", "sums_by_product"): (
        TORCH,
        lambda: (
            messages_of(captured("parallel.py:step", 2, "--tensor 2 --half"))["all_reduce", "tp", 4194304.0, "bf16"]
            != 18
        ),
    ),
    ("torchtitan_2026_eager", "fsdp_root_unit"): (TITAN, lambda: gathered(titan()).count(65536000.0) == 0),
    ("torchtitan_2026_eager", "joined_qkv"): (
        TITAN,
        lambda: any(e.shape[2] == 1536 for e in titan().events if e.work == "gemm" and e.phase == "forward"),
    ),
    ("torchtitan_2026_eager", "deals_layers"): (TITAN, deals_layers),
    ("torchtitan_2026_eager", "repeats_keys"): (TITAN, lambda: repeats_keys("titan.py:step", "")),
    ("torchtitan_eager", "joined_expert_gate"): (TITAN, lambda: grouped_products(titan(DEEPSEEK)) == 2),
    ("torchtitan_eager", "keeps_values_in_place"): (
        TITAN,
        lambda: ("aten.mm", 2 * 2048 * 16 * (64 + 64)) in kept_by(titan(DEEPSEEK), "attention.wkv_b"),
    ),
    ("torchtitan_eager", "weighs_rows_in_fp32"): (
        TITAN,
        lambda: ("aten._to_copy", 4 * 2048 * 4 * 1024) in kept_by(titan(DEEPSEEK), "moe.routed_experts"),
    ),
    ("torchtitan_2026_eager", "copies_qkv"): (
        TITAN,
        lambda: sum(e.name == "aten.clone" and e.path.endswith("qkv_linear") for e in titan().events) == 3 * 4,
    ),
    ("torchtitan_eager", "grouped_kernel"): (
        TITAN,
        lambda: (
            [e.phase for e in titan("--model deepseek_v3").events if e.name == "aten._grouped_mm"].count("forward")
            == 3 * 3
        ),
    ),
    ("torchtitan_2026_eager", "recompute_extent"): (TITAN, lambda: extent_of_recompute(titan("--recompute full"))),
    ("torchtitan_eager", "pipeline_keeps_unsharded"): (
        TITAN,
        lambda: messages_of(pipeline("titan.py:step", 4, PIPES))["all_gather", "dp", 22548480.0, "bf16"] == 4,
    ),
    ("torchtitan_eager", "joined_gate"): (TITAN, lambda: products("feed_forward", titan()) == 2),
    **{
        ("pytorch_fsdp", key): (LIBRARY, seen)
        for key, seen in {
            "joined_qkv": lambda: products("self_attn") == 2,
            "joined_gate": lambda: products("mlp") == 2,
            "fused_norm": lambda: "rsqrt" not in run_by(".input_layernorm"),
        }.items()
    },
    **{
        ("hugging_face_ddp", key): (LIBRARY, seen)
        for key, seen in {
            "joined_qkv": lambda: products("self_attn", trainer("--data ddp")) == 2,
            "joined_gate": lambda: products("mlp", trainer("--data ddp")) == 2,
            "fused_norm": lambda: "rsqrt" not in run_by(".input_layernorm", trainer("--data ddp")),
        }.items()
    },
    ("hugging_face_fsdp", "accumulates_unsharded"): (
        LIBRARY,
        lambda: reductions(trainer("--data fsdp2 --accumulate 4 --layers 8 --vocabulary 1024")) == 8 + 2,
    ),
    ("pytorch_ddp", "autocast"): (LIBRARY, lambda: casts_weights(trainer("--data ddp"))),
    ("pytorch_ddp", "clips_gradients"): (LIBRARY, lambda: clips(trainer("--data ddp"))),
    **{
        ("hugging_face_deepspeed", key): (LIBRARY, seen)
        for key, seen in {
            "joined_qkv": lambda: products("self_attn") == 2,
            "joined_gate": lambda: products("mlp") == 2,
            "fused_norm": lambda: "rsqrt" not in run_by(".input_layernorm"),
            "fused_rotary": lambda: not {"neg", "cat"} <= set(run_by(".self_attn")),
            "fused_bias_activation": lambda: (run_by(".mlp.act_fn"), run_by(".mlp")) != (["silu"], ["mul"]),
            "fused_residual": lambda: run_by("").count("add") != 2,
            "dropout": lambda: drops_out(plain()),
            "in_place_cross_entropy": lambda: not any(e.name == "aten._log_softmax" for e in plain().events),
            "torch_loss": lambda: losses(plain()) == ["_log_softmax", "nll_loss_forward"],
        }.items()
    },
    ("deepspeed", "gathers_by_tensor"): (
        DEEPSPEED,
        lambda: gathered(zero("--stage 3 --by-tensor")).count(2097152.0) == 16,
    ),
    ("deepspeed", "fsdp_prefetch"): (DEEPSPEED, lambda: int(gathered(zero("--stage 3"))[0] > 65536000.0)),
    ("deepspeed", "reduces_whole"): (
        DEEPSPEED,
        lambda: {e.work for e in zero("--stage 2").events if e.message > 1e6} == {"all_reduce", "all_gather"},
    ),
    ("megatron_core", "tensor_parallel_overlap"): (MEGATRON, lambda: hides_input_gradients(megatron())),
    ("megatron_core", "divides_gradients"): (MEGATRON, lambda: divides_gradients(megatron())),
    ("megatron_core", "drops_gradients"): (MEGATRON, lambda: fresh_gradients(megatron())),
    ("megatron_core", "keeps_buckets"): (MEGATRON, lambda: standing_gradients(megatron()) > 1.5),
    ("megatron_core", "gathers_logits"): (MEGATRON, lambda: any(e.work == "all_gather" for e in megatron().events)),
}
"""(profile, switch) -> the code and version that were run, and what they do."""


@pytest.mark.slow
@pytest.mark.parametrize("switch", WITNESSES, ids=".".join)
def test_a_switch_is_what_the_code_does(switch: tuple[str, str]) -> None:
    _code, seen = WITNESSES[switch]

    assert getattr(load_framework(switch[0]), switch[1]) == seen()


def test_profiles_name_the_witnesses_that_there_are() -> None:
    named = {}
    for file in sorted((ROOT / "hardware_specs/frameworks").glob("*.toml")):
        for key, source in tomllib.loads(file.read_text())["sources"].items():
            if "witnessed: " in source:
                named[(file.stem, key)] = source.rpartition("witnessed: ")[2]

    assert {switch: code for switch, (code, _) in WITNESSES.items()} == named
