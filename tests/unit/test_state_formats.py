"""Formats of the optimizer's states: bytes of each, what an update moves, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import PlanError
from simulator.goodput.checkpoints import checkpoint_bytes
from simulator.importers.jobs import import_files
from simulator.importers.table.row_notes import row_states
from simulator.job import load_job
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import Program, Segment
from simulator.simulation import simulate_job
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

MODEL = load_model("gpt2_355m")


def program(optimizer: str = "adam", precision: str = "bf16", **plan: Any) -> Program:
    work = Workload(model=MODEL, sequence_length=1024, global_batch_size=8, precision=precision, optimizer=optimizer)
    return lower(work, Plan(**plan), 8)


def per_weight(found: Program) -> dict[str, float]:
    """Bytes per weight by category."""
    tensors = found.resident[0].tensors
    weights = sum(t.bytes for t in tensors if t.name == "weights") / 2.0
    return {t.name: t.bytes / weights for t in tensors if t.name in ("gradient buffers", "optimizer states")}


def moved(found: Program, name: str) -> float:
    """Bytes per weight that the update reads and writes."""
    weights = sum(t.bytes for t in found.resident[0].tensors if t.name == "weights") / 2.0
    tables = [t for item in found.items if isinstance(item, Segment) for t, _ in item.pieces]
    return next(
        float(t.read[i] + t.written[i]) / weights for t in tables for i in range(len(t.label)) if t.label[i] == name
    )


@pytest.mark.parametrize(
    ("plan", "states", "traffic"),
    [
        ({}, 12.0, 30.0),  # master and two moments in fp32
        (
            {"moment_dtype": "bf16"},
            8.0,
            22.0,
        ),  # DeepSeek-V3, arXiv 2412.19437, section 3.3.3: moments in bf16, master in fp32
        ({"moment_dtype": ["bf16", "fp8"]}, 7.0, 20.0),
        ({"splits_master_weights": True}, 10.0, 30.0),  # 2 + 2 + 8: 12 bytes with the weight itself
        ({"splits_master_weights": True, "moment_dtype": "bf16"}, 6.0, 22.0),
    ],
)
def test_states_have_the_bytes_of_their_formats(plan: dict[str, Any], states: float, traffic: float) -> None:
    found = program(**plan)
    assert per_weight(found)["optimizer states"] == pytest.approx(states)
    assert moved(found, "adam") == pytest.approx(traffic)


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("lamb", 2), ("lion", 1), ("sgd", 1), ("lars", 1), ("adam_fused", 2)]
)
def test_every_optimizer_says_how_many_moments_it_keeps(optimizer: str, moments: int) -> None:
    wide, narrow = (
        per_weight(program(optimizer, **plan))["optimizer states"] for plan in ({}, {"moment_dtype": "bf16"})
    )
    assert wide == pytest.approx(4 + 4 * moments)
    assert narrow == pytest.approx(4 + 2 * moments)


def test_muon_keeps_one_moment_of_matrices_and_two_of_the_rest() -> None:
    wide, narrow = (per_weight(program("muon", **plan))["optimizer states"] for plan in ({}, {"moment_dtype": "bf16"}))
    assert wide - 4 == pytest.approx(2 * (narrow - 4))


def test_without_wider_weights_moments_may_be_wider_than_these() -> None:
    assert per_weight(program(precision="bf16_true"))["optimizer states"] == pytest.approx(4)
    assert per_weight(program(precision="bf16_true", moment_dtype="fp32"))["optimizer states"] == pytest.approx(8)


def test_weights_with_remainders_are_sharded_as_bf16() -> None:
    """FSDP of a bf16 model: 2 bytes of weights, 2 of remainders, 8 of moments; torchtitan's shards are fp32."""
    wide, split = (
        program(framework="torchtitan", zero_stage=3, **plan) for plan in ({}, {"splits_master_weights": True})
    )

    def held(found: Program, name: str) -> float:
        return sum(t.bytes for t in found.resident[0].tensors if t.name == name)

    assert held(split, "weights") == held(wide, "weights") / 2
    assert held(split, "optimizer states") == held(wide, "optimizer states") * (8 + 2) / 8


@pytest.mark.parametrize(
    ("settings", "values", "way"),
    [
        ({"optimizer": "lion", "moment_dtype": ["bf16", "bf16"]}, "'lion' has 1", "one format for all"),
        ({"optimizer": "adafactor", "moment_dtype": "bf16"}, "none of a format to choose", "optimizer = 'adam'"),
        ({"moment_dtype": "bf16", "optimizer_offload": 0.5}, "optimizer_offload = 0.5", "leave moment_dtype"),
        (
            {"splits_master_weights": True, "optimizer_offload": 1.0},
            "optimizer_offload = 1.0",
            "leave splits_master_weights",
        ),
        ({"splits_master_weights": True, "precision": "fp16"}, "precision = 'fp16'", "precision = 'bf16'"),
        ({"splits_master_weights": True, "precision": "bf16_true"}, "'bf16_true' has none", "precision = 'bf16'"),
        (
            {"splits_master_weights": True, "framework": "pytorch_fsdp_autocast"},
            "autocast",
            "leave splits_master_weights out",
        ),
        ({"moment_dtype": "bf16", "gradient_exchange": "parameter_server"}, "'parameter_server'", "one of the two"),
    ],
)
def test_formats_that_cannot_be_are_refused(settings: dict[str, Any], values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        program(**settings)
    assert values in str(caught.value)
    assert way in str(caught.value)


def test_a_checkpoint_holds_states_in_their_formats() -> None:
    def each(*settings: str) -> float:
        job = load_job("gpt3_175b", settings)
        return checkpoint_bytes(job, simulate_job(job)) / job.workload.model.parameters

    assert each() - each("plan.moment_dtype=bf16") == pytest.approx(4.0, rel=1e-3)
    assert each() - each("plan.splits_master_weights=true") == pytest.approx(2.0, rel=1e-3)


SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --bf16 --vocab-size 50304 {}"
)


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ("--exp-avg-dtype bf16", {}),  # Megatron takes it with the precision-aware optimizer alone
        (
            "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8 --main-grads-dtype bf16",
            {"moment_dtype": ("bf16", "fp8"), "gradient_dtype": "bf16", "splits_master_weights": True},
        ),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --optimizer-cpu-offload", {}),
    ],
)
def test_megatrons_flags_are_read(flags: str, fields: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT.format(flags))
    found = import_files([file]).to_dict()["job"]["plan"]
    for name in ("moment_dtype", "splits_master_weights"):
        kept = found.get(name)
        assert (tuple(kept) if isinstance(kept, list) else kept) == fields.get(name)


@pytest.mark.parametrize(
    ("words", "precision", "refused"),
    [
        ({}, "bf16", 0),
        ({"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}, "bf16_true", 0),
        ({"bf16_master_weights_and_grads": True}, "bf16_true", 1),
    ],
)
def test_deepspeeds_bf16_states_are_read(words: dict[str, bool], precision: str, refused: int, tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True, **words},
    }
    file.write_text(json.dumps(config))
    answer = import_files([file]).to_dict()
    assert answer["job"]["workload"]["precision"] == precision
    assert len(answer["not_understood"]) == refused


@pytest.mark.parametrize(
    ("note", "fields"),
    [
        ("bf16 moments; DeepEP", {"moment_dtype": ("bf16",)}),
        ("gradients and moments in bf16", {"moment_dtype": ("bf16",)}),
        ("store_param_remainders=true", {"splits_master_weights": True}),
        ("Megatron-LM, precision-aware optimizer", {"splits_master_weights": True}),
        ("precision-aware optimizer in later trials", {}),
        ("paged AdamW 8bit, moments in bf16", {}),
        ("gradients and moments on the host", {}),
    ],
)
def test_rows_tell_formats_of_states_in_words(note: str, fields: dict[str, Any]) -> None:
    assert row_states({"quality_note": note}, {"zero_stage": 1}) == fields
