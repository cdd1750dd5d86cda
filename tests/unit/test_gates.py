"""Inputs of gates that are kept in 8 bits (Megatron-Core fusions/fused_bias_swiglu.py: fp8_input_store)."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import Plan, Prediction, Workload, load_cluster, load_model, simulate
from simulator.errors import PlanError
from simulator.importers.table.row_notes import row_gates
from simulator.program.program import Segment
from simulator.report.memory import CATEGORIES

LAYERS, TOKENS, FFN = 32, 4096, 14336
"""Llama-3 8B, one sequence at a time."""


def predict(model: str = "llama3_8b", **plan: Any) -> Prediction:
    work = Workload(
        model=load_model(model), sequence_length=TOKENS if model != "gpt2_355m" else 1024, global_batch_size=8
    )
    return simulate(work, Plan(**plan), load_cluster("dgx_h100", 8))


def test_a_byte_of_each_stays_and_kernels_of_their_own_make_and_widen_it() -> None:
    wide, narrow = (predict(narrow_gate_input=n) for n in (False, True))
    at = list(CATEGORIES).index("activations")
    kept = [float(p.memory.by_category[p.memory.fullest][at]) for p in (wide, narrow)]
    assert kept[0] - kept[1] == pytest.approx(LAYERS * TOKENS * 2 * FFN, rel=0.01)
    found = {
        table.phase[i]: (float(table.read[i]), float(table.written[i]))
        for item in narrow.program.items
        if isinstance(item, Segment)
        for table, _ in item.pieces
        for i, label in enumerate(table.label)
        if label == "gate input in 8 bits"
    }
    size = float(TOKENS * 2 * FFN)
    assert found == {"forward": (2 * size, size), "backward": (size, 2 * size)}


@pytest.mark.parametrize(
    ("model", "plan", "what"),
    [("gpt2_355m", {}, "gated_mlp = false"), ("llama3_8b", {"framework": "hugging_face_fsdp"}, "hugging_face_fsdp")],
)
def test_without_a_gate_that_is_one_kernel_it_is_refused(model: str, plan: dict[str, Any], what: str) -> None:
    with pytest.raises(PlanError, match=f"narrow_gate_input is about a gate that is one kernel, but .*{what}"):
        predict(model, narrow_gate_input=True, **plan)


@pytest.mark.parametrize(
    ("note", "found"),
    [
        ("inputs of layers kept in fp8", True),
        ("FP8_ACTIVATION=True", True),
        ("FP8_ACTIVATION=False", False),
        ("", False),
    ],
)
def test_a_row_says_so(note: str, found: bool) -> None:
    assert bool(row_gates({"quality_note": note})) is found
