"""Kernels that a framework runs apart: casts of operands, and operations in place of a fused kernel."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.calls import Traffic
from simulator.program.program import OperatorTable, Segment
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

TOKENS, HIDDEN = 8192, 4096


def forward(framework: str, precision: str = "bf16", **plan: Any) -> OperatorTable:
    work = Workload(model=load_model("llama3_8b"), sequence_length=TOKENS, global_batch_size=8, precision=precision)
    program = lower(work, Plan(framework=framework, **plan), 8)
    return next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == "layer forward")


@pytest.mark.parametrize(
    ("framework", "tensor", "read", "written"),
    [
        ("megatron_core", 1, 1.0, 1.0),  # the norm before writes a narrow copy, which is transposed
        ("torchtitan", 1, 2.0 + 1.0, 2.0),  # in bf16, and the narrow copy for the transposed one
        ("torchtitan", 4, 2.0 / 4 + 1.0, 1.0 / 4 + 1.0),  # cast before it is gathered, transposed after
    ],
)
def test_an_operand_cast_apart_is_read_again(framework: str, tensor: int, read: float, written: float) -> None:
    found = forward(framework, "fp8", tensor_parallel=tensor, sequence_parallel=tensor > 1)
    rows = [i for i, label in enumerate(found.label) if label in ("mlp up cast to fp8", "mlp up transposed")]
    assert read * TOKENS * HIDDEN == found.read[rows].sum()
    assert written * TOKENS * HIDDEN == found.written[rows].sum()


def test_plain_operations_are_no_small_kernels_of_a_layer_as_fused_ones_are() -> None:
    plain, fused = forward("torchtitan_eager"), forward("olmo_core")
    for label, access in (("attention norm", "plain"), ("rotary", "strided"), ("swiglu", "stream")):
        assert Traffic(access) == plain.call[plain.label.index(label)]
        assert Traffic("layer") == fused.call[fused.label.index(label)]
        assert plain.read[plain.label.index(label)] > fused.read[fused.label.index(label)]


@pytest.mark.parametrize(
    ("framework", "forward_access"), [("megatron_lm_2021", "scores"), ("scaling_torch_attention", "layer")]
)
def test_a_fused_softmax_over_scores_in_memory_goes_backward_slower(framework: str, forward_access: str) -> None:
    work = Workload(model=load_model("gpt3_175b"), sequence_length=2048, global_batch_size=8)
    program = lower(work, Plan(framework=framework, recompute="full", tensor_parallel=8), 8)
    seen = {}
    for item in program.items:
        for table, _ in item.pieces if isinstance(item, Segment) else ():
            for label, call, phase in zip(table.label, table.call, table.phase, strict=True):
                if label == "softmax":
                    seen.setdefault(str(phase), set()).add(call.access)
    assert seen
    backward = "scores backward" if forward_access == "scores" else "layer"
    for phase, layouts in seen.items():
        assert layouts == {backward if phase == "backward" else forward_access}, phase
    assert "backward" in seen
    assert len(seen) > 1
