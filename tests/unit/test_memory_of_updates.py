"""What stands during an update and beside it, by hand: gradients that come and go, results over lists, places broken up."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.accuracy.memory import memory_outcomes
from simulator.importers.table.row_cluster import row_cluster
from simulator.importers.table.rows import read_rows
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES, Segment
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.validation.evidence import DATA

MODEL = load_model("llama3_2_1b")


@cache
def run(
    precision: str, batch: int, framework: str = "pytorch_fsdp", optimizer: str = "adam", chunks: int = 0
) -> Prediction:
    """One GPU, sequences of 2,048 one by one."""
    work = Workload(
        model=MODEL, sequence_length=2048, global_batch_size=batch, precision=precision, optimizer=optimizer
    )
    plan = Plan(framework=framework, recompute="full", loss_chunks=chunks or None)
    return simulate(work, plan, row_cluster({"gpu": "A100-80GB-SXM", "n_gpus": "1"})[0])


def held(prediction: Prediction, *names: str) -> float:
    """Bytes per weight of some categories at the peak."""
    columns = [CATEGORIES.index(name) for name in names]
    return float(prediction.memory.by_category[0, columns].sum() / MODEL.parameters)


def test_bf16_alone_holds_weights_gradients_and_moments_in_two_bytes() -> None:
    """8 bytes per weight, and 2 more for the roots of all second moments that torch's list form makes at the update."""
    found = run("bf16_true", 1)
    states = held(found, "weights", "gradients", "optimizer_states")
    assert np.isclose(states, 8.0, rtol=0.01)
    assert np.isclose(held(found, "workspace"), 2.0, atol=0.1)


def test_what_the_host_updates_makes_no_results_on_the_gpu() -> None:
    work = Workload(model=MODEL, sequence_length=2048, global_batch_size=1, precision="bf16_true")
    cluster, found = row_cluster({"gpu": "A100-80GB-SXM", "n_gpus": "1"})[0], []
    for part in (0.0, 0.25, 1.0):
        program = simulate(
            work, Plan(framework="pytorch_fsdp", recompute="full", optimizer_offload=part), cluster
        ).program
        results = [t.bytes for effect in program.effects for t in effect.tensors if t.name == "results of the update"]
        found.append(sum(results) / MODEL.parameters)
    assert np.allclose(found, [2.0, 1.5, 0.0])


def test_moments_in_8_bits_take_a_quarter_of_fp32_ones() -> None:
    saved = held(run("bf16", 1), "optimizer_states") - held(run("bf16", 1, optimizer="adam_8bit"), "optimizer_states")
    assert np.isclose(saved, 8.0 - 2.0 - 8.0 / 256, rtol=0.01)


def test_gradients_stand_beside_activations_only_where_microbatches_add_up() -> None:
    """With one microbatch the peak is at one end of the backward; with two, the first one's gradients are there already."""
    one, two = run("bf16_true", 1, "torchtitan_eager"), run("bf16_true", 2, "torchtitan_eager")
    assert np.isclose(held(two, "gradients"), 2.0, rtol=0.01)
    assert one.memory.total[0] < two.memory.total[0] <= one.memory.total[0] + 2.05 * MODEL.parameters


def test_a_loss_in_chunks_holds_the_logits_of_one() -> None:
    """16 chunks of 2,048 x 128,256 logits: a sixteenth of 14 bytes each, and the gradient of the head's input."""
    whole, parts = run("bf16_true", 1, "torchtitan_eager"), run("bf16_true", 1, "torchtitan_eager", chunks=16)
    assert held(whole, "logits") > 0.0 == held(parts, "logits")
    assert parts.memory.total[0] < whole.memory.total[0]


def test_places_that_moments_broke_up_are_no_larger_than_what_activations_took() -> None:
    few = run("bf16_true", 1)
    late = (4.0 + 2.0) * MODEL.parameters
    broken = held(few, "fragmentation") * MODEL.parameters
    assert 0.0 < broken <= late


def test_an_update_over_lists_of_tensors_moves_every_number_operation_by_operation() -> None:
    """fp32: decay 8 bytes, first moment 12, second 8 and 12, root 8, division 8, epsilon 8, step 16: 80; in 16 bits alone half of them."""
    assert [80.0, 40.0] == [round(moved(precision, "adam")) for precision in ("bf16", "bf16_true")]
    assert [28.0, 14.0] == [round(moved(precision, "adam_fused")) for precision in ("bf16", "bf16_true")]
    standing = [held(run("bf16_true", 1, optimizer=optimizer), "workspace") for optimizer in ("adam", "adam_fused")]
    assert standing[0] > standing[1]


def moved(precision: str, optimizer: str) -> float:
    """Bytes per weight that the optimizer's kernels read and write."""
    program = run(precision, 1, "pytorch_ddp", optimizer).program
    tables = (t for item in program.items if isinstance(item, Segment) for t, _ in item.pieces)
    rows = (t.read[j] + t.written[j] for t in tables for j, label in enumerate(t.label) if label == optimizer)
    return float(sum(rows) / MODEL.parameters)


@pytest.mark.parametrize(
    ("precision", "plan", "read"),
    [
        ("bf16", {"framework": "megatron_core"}, 4.0),
        ("bf16", {"framework": "megatron_core", "gradient_dtype": "bf16"}, 2.0),
        ("bf16", {"framework": "megatron_core", "zero_stage": 3}, 0.0),
        ("fp16", {"framework": "megatron_core"}, 0.0),
        ("bf16", {"framework": "megatron_bridge"}, 0.0),
        ("bf16", {"framework": "megatron_lm_2023"}, 0.0),
    ],
)
def test_megatron_looks_through_all_gradients_for_nans_before_it_adds_them_up(
    precision: str, plan: dict[str, Any], read: float
) -> None:
    """Bytes read per weight (megatron/core/distributed, check_grads); loss scaling finds NaNs by itself."""
    work = Workload(model=MODEL, sequence_length=2048, global_batch_size=8, precision=precision)
    program = lower(work, Plan(**plan), 8)
    (update,) = [i for i in program.items if isinstance(i, Segment) and i.name == "optimizer"]
    found = [t.read[t.label.index("check gradients")] for t, _ in update.pieces if "check gradients" in t.label]
    assert sum(found) / MODEL.parameters == pytest.approx(read, rel=0.01)


@cache
def flat(stage: int, gpus: int, framework: str = "hugging_face_deepspeed") -> Prediction:
    """Llama 3 8B by DeepSpeed, a sequence of 512 on each GPU."""
    work = Workload(model=load_model("llama3_8b"), sequence_length=512, global_batch_size=gpus)
    cluster = row_cluster({"gpu": "A100-80GB-SXM", "n_gpus": str(gpus)})[0]
    return simulate(work, Plan(framework=framework, recompute="full", zero_stage=stage), cluster)


@pytest.mark.parametrize(
    ("stage", "gpus", "numbers"),
    [(3, 2, 1e9), (3, 64, 8.03e9 / 64), (2, 64, 8.03e9 / 64), (1, 2, 8.03e9 / 3), (1, 64, 0.0)],
)
def test_gradients_are_joined_and_cast_for_the_update(stage: int, gpus: int, numbers: float) -> None:
    """6 bytes for each of a share's weights, under ZeRO-3 of a billion at most; under ZeRO-1 the gradients of all others are gone then,
    so that of two ranks' 3 bytes per weight 2 come to what stands, and nothing of 64's."""
    effects = flat(stage, gpus).program.effects
    sizes = [t.bytes for e in effects for t in e.tensors if t.name == "flat copies of gradients"]
    assert sum(sizes) == pytest.approx(6.0 * numbers, rel=0.001)


def test_the_first_release_joins_all_gradients_of_a_rank_at_once() -> None:
    """sub_group_size was 1e12 in April 2021."""
    found = flat(3, 2, "deepspeed_2021").program.effects
    sizes = [t.bytes for e in found for t in e.tensors if t.name == "flat copies of gradients"]
    assert sum(sizes) == pytest.approx(3.0 * 8.03e9, rel=0.001)


@pytest.mark.parametrize(("case", "states", "copies"), [("dsbf16-m001", 12, 6e9), ("dsbf16-m002", 6, 2e9)])
def test_a_small_batch_peaks_where_the_update_joins_its_gradients(case: str, states: int, copies: float) -> None:
    """DeepSpeedExamples, training/bf16_master_weight/README.md: 31.38 GB of 6.86 billion weights over four H100, and 18.93 (16.17
    beside the update) in bf16 alone, where the flat weights that are updated are a copy still."""
    [row] = [row for row in read_rows(DATA / "blind4_memory.csv") if row["case_id"] == case]
    [[found, _]] = memory_outcomes([row])
    assert found.predicted == pytest.approx(found.measured, rel=0.06)
    assert dict(found.terms)["optimizer_states"] == pytest.approx(states * 6.86e9 / 4, rel=0.01)
    assert copies < dict(found.terms)["workspace"] < 1.1 * copies


@pytest.mark.parametrize("case", ["s10a-m001", "s10a-m002", "s10a-m003", "s10a-m004"])
def test_an_adam_that_is_a_loop_makes_two_results_of_each_tensor(case: str) -> None:
    """7.6 billion weights on two and four A100 under ZeRO-3, 1 and 2, "torch AdamW without foreach" (torch/optim/adam.py): 4 bytes for each
    of a share's gradients, 8 for the root and its quotient, under ZeRO-3 of a billion at once."""
    [row] = [row for row in read_rows(DATA / "blind8_memory.csv") if row["case_id"] == case]
    [[found, _]] = memory_outcomes([row])
    assert found.predicted == pytest.approx(found.measured, rel=0.02)


def test_of_weights_that_are_not_joined_a_loop_makes_results_of_the_largest() -> None:
    """The embedding of Llama 3.2 1B, a fifth of its weights."""
    one, other = (run("bf16_true", 1, optimizer=name) for name in ("adam", "adam_loop"))
    made = [
        [t.bytes for e in p.program.effects for t in e.tensors if t.name == "results of the update"]
        for p in (one, other)
    ]
    assert sum(made[0]) == pytest.approx(2.0 * MODEL.parameters, rel=0.001)
    assert sum(made[1]) == pytest.approx(2 * 2.0 * MODEL.vocabulary * MODEL.hidden, rel=0.001)
    assert moved("bf16", "adam_loop") == moved("bf16", "adam")
