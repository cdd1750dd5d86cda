"""Experts that the host starts one after the other: launches, waits, and what gradients of slices move."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.importers.table.row_experts import row_experts
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import OperatorTable, Program, Segment
from simulator.program.spec import verify
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

HUGGING_FACE: dict[str, Any] = {"framework": "pytorch_fsdp", "attention": "flash2", "zero_stage": 3}
EXPERTS = 128


def workload(length: int = 4096) -> Workload:
    return Workload(model=load_model("qwen3_30b_a3b"), sequence_length=length, global_batch_size=8)


def lowered(**plan: Any) -> Program:
    program = lower(workload(), Plan(**{**HUGGING_FACE, **plan}), 8)
    verify(program)
    return program


def rows(program: Program, phase: str) -> dict[str, dict[str, Any]]:
    """Label -> a row of the layer with experts."""
    tables: list[OperatorTable] = [
        t for i in program.items if isinstance(i, Segment) and i.phase == phase for t, _ in i.pieces
    ]
    found = next(t for t in tables if any("expert up" in label for label in t.label))
    names = ("launches", "read", "written", "call", "flops")
    return {label: {name: getattr(found, name)[i] for name in names} for i, label in enumerate(found.label)}


def test_each_expert_has_launches_of_its_own_and_the_host_waits_for_its_rows() -> None:
    forward = rows(lowered(), "forward")
    assert forward["expert up"]["launches"] == EXPERTS
    assert forward["expert rows taken"]["launches"] == EXPERTS
    assert forward["swiglu" if "swiglu" in forward else "expert swiglu"]["launches"] == 2 * EXPERTS
    assert forward["expert rows found"]["call"].host == "end"
    assert forward["expert rows found"]["launches"] % EXPERTS == 0
    assert not {"permute", "unpermute"} & set(forward)


def test_grouped_products_need_none_of_it() -> None:
    forward = rows(lowered(expert_loop="none"), "forward")
    assert {"permute", "unpermute"} <= set(forward)
    assert not any(label.startswith("expert rows") for label in forward)


@pytest.mark.parametrize("loop", ["modules", "slices"])
def test_a_loop_computes_what_grouped_products_do(loop: str) -> None:
    for phase in ("forward", "backward"):
        one, other = (rows(lowered(expert_loop=name), phase) for name in (loop, "none"))
        assert sum(r["flops"] for r in one.values()) == sum(r["flops"] for r in other.values())


def test_the_gradient_of_a_slice_is_one_of_all_experts() -> None:
    """Each of 128 turns fills the whole gradient with zeros and adds it to the sum: 2 reads and 2 writes of the whole, one of the slice."""
    row = next(r for label, r in rows(lowered(expert_loop="slices"), "backward").items() if "slices" in label)
    whole = 2.0 * EXPERTS * 768 * 2048
    assert row["read"] == row["written"] == pytest.approx(2 * EXPERTS * whole + whole)
    assert not any("slices" in label for label in rows(lowered(), "backward"))


def test_the_time_of_a_short_loop_does_not_depend_on_tokens() -> None:
    """Published (TRL's long sequences, 16 H100): 8k and 16k tokens a rank take as long in a loop of slices; grouped, a seventh of it."""
    times = {
        (loop, length): simulate(
            workload(length), Plan(**HUGGING_FACE, expert_loop=loop), load_cluster("dgx_h100", 8)
        ).step_time
        for loop in ("none", "slices")
        for length in (1024, 2048)
    }
    assert times["slices", 2048] < 1.1 * times["slices", 1024]
    assert times["slices", 2048] > 5 * times["none", 2048]


def test_experts_that_are_dealt_out_are_grouped_unless_the_plan_says_otherwise() -> None:
    assert "permute" in rows(lowered(expert_parallel=8), "forward")
    with pytest.raises(PlanError, match="expert_loop = 'none'"):
        lowered(expert_parallel=8, expert_loop="slices")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("a loop over experts", "modules"),
        ("experts one after another in a loop; slices of joined tensors", "slices"),
        ("transformers 5.6", "none"),
        ("DeepEP; grouped products", "none"),
        ("", None),
    ],
)
def test_words_of_a_row(words: str, wanted: str | None) -> None:
    found = row_experts({"quality_note": words}, "hugging_face_fsdp", load_model("qwen3_30b_a3b"), 1, 8, [])
    assert found.get("expert_loop") == wanted
