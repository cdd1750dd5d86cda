"""What stands of FSDP2's units when a GPU is fullest, and where what is in no layer is reduced."""

from __future__ import annotations

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import COMPUTE, Program
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

LAYER = 2 * (2048 * 2048 * 2 + 2048 * 512 * 2 + 3 * 2048 * 8192)
"""Bytes of a layer's matrices in bf16."""


def lowered(framework: str, **plan: object) -> Program:
    work = Workload(model=load_model("llama3_2_1b"), sequence_length=2048, global_batch_size=8)
    return lower(work, Plan(**{"framework": framework, "zero_stage": 3, "data_parallel": 8, **plan}))  # type: ignore[arg-type]


def sizes(program: Program, column: str, rows: list[int]) -> list[dict[str, float]]:
    """What rows allocate, hold or free: name -> bytes."""
    numbers = getattr(program, column)[rows].tolist()
    return [{t.name: t.bytes for t in program.effects[n].tensors} if n >= 0 else {} for n in numbers]


def backwards(program: Program) -> list[int]:
    """Backward rows of layers, in order."""
    return [r for r in range(program.size) if program.kind[r] == COMPUTE and program.label(r).startswith("0B0")][1:-1]


@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_stand_as_they_are_made(layers: int) -> None:
    """Some of a layer's where its backward is fullest; of a unit of two all of the other's, too; none from a row's start to its end."""
    program = lowered("torchtitan_eager", recompute="none", fsdp_unit=layers)
    rows = backwards(program)
    for held in sizes(program, "mark_effect", rows):
        assert 0 < held["unsharded gradients of layer so far"] < LAYER
        assert held.get("unsharded gradients of other layers", 0.0) == pytest.approx((layers - 1) * LAYER, rel=1e-3)
    assert not any("unsharded gradients" in name for held in sizes(program, "start_effect", rows) for name in held)


def test_what_is_reduced_stands_while_the_next_layer_runs() -> None:
    program = lowered("torchtitan_eager", recompute="none")
    first, *others = sizes(program, "mark_effect", backwards(program))
    assert "gradients of layer to reduce" not in first
    assert [held["gradients of layer to reduce"] for held in others] == pytest.approx([2 * LAYER] * 15, rel=1e-3)


def test_what_is_gathered_stands_from_where_the_host_asks_for_it() -> None:
    """At the start of the layer before, not of the message, which may wait for others."""
    program = lowered("torchtitan_eager", recompute="none")
    held = sizes(program, "start_effect", backwards(program))
    assert [row["gathered weights of layer"] for row in held[:-1]] == pytest.approx([LAYER] * 15, rel=1e-3)


@pytest.mark.parametrize("framework", ["torchtitan_eager", "pytorch_fsdp"])
def test_the_root_unit_is_reduced_when_the_backward_has_ended(framework: str) -> None:
    program = lowered(framework)
    last = max(r for r in range(program.size) if program.kind[r] == COMPUTE and program.label(r).startswith("0B0"))
    head = [
        r for r in range(program.size) if program.label(r).startswith("reduce_scatter gradients of embedding + head")
    ]
    assert [program.after[program.after_offsets[r] : program.after_offsets[r + 1]].tolist() for r in head] == [[last]]


def test_whole_gradients_of_two_units_stand_at_most() -> None:
    """The compute stream waits for the reduction before when it starts one: the layer behind waits for the last but one."""
    program = lowered("torchtitan_eager", recompute="none")
    reduced = [r for r in range(program.size) if program.label(r).startswith("reduce_scatter gradients of layer")]
    waited = [
        set(program.after[program.after_offsets[r] : program.after_offsets[r + 1]].tolist()) for r in backwards(program)
    ]
    assert [r in waited[n + 2] for n, r in enumerate(reduced[:-2])] == [True] * 14


@pytest.mark.parametrize("schedule", ["zb_h1", "zbv", "one_f_one_b"])
def test_shorter_sequences_need_no_more_memory(schedule: str) -> None:
    """Weight gradients apart from their inputs' come faster than they are reduced."""
    plan = Plan(zero_stage=3, pipeline_parallel=4, schedule=schedule, chunks_per_rank=2 if schedule == "zbv" else 1)
    peaks = []
    for tokens in (128, 512, 2048):
        work = Workload(model=load_model("llama2_13b"), sequence_length=tokens, global_batch_size=128)
        peaks.append(simulate(work, plan, load_cluster("dgx_h100", 32)).peak_memory)
    assert peaks == sorted(peaks)


def test_activations_come_layer_by_layer() -> None:
    program = lowered("torchtitan_eager", recompute="none")
    rows = [r for r in range(program.size) if program.kind[r] == COMPUTE and program.label(r).startswith("0F0")]
    kept = [
        sum(held.get(name, 0.0) for name in ("mlp input", "logits")) for held in sizes(program, "start_effect", rows)
    ]
    assert len(rows) == 18
    assert kept[1:-1] == pytest.approx([2048 * 2048 * 2.0] * 16)
    assert kept[-1] == pytest.approx(2048 * 128256 * 4.0)
