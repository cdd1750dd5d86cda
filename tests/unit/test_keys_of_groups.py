"""Keys and values of groups of queries: repeated before kernels that take a head of each, not before those that take groups."""

from __future__ import annotations

import pytest

from simulator.program.program import Segment
from tests.lowered import lowered, workload


@pytest.mark.parametrize(
    ("kernel", "repeats"), [("sdpa_2025", True), ("sdpa", False), ("flash2", False), ("te", False)]
)
@pytest.mark.parametrize("framework", ["hugging_face_ddp", "hugging_face_fsdp"])
def test_keys_are_repeated_before_kernels_that_take_no_groups(framework: str, kernel: str, repeats: bool) -> None:
    stage = {"zero_stage": 3} if framework.endswith("fsdp") else {}
    program = lowered(workload("llama3_8b"), 8, framework=framework, attention=kernel, **stage)
    tables = [t for item in program.items if isinstance(item, Segment) for t, _ in item.pieces]
    assert repeats == any("repeat" in label for t in tables for label in t.label)
