"""A Llama that was recorded equals our own lowering of it: FLOP and bytes of messages to 1e-9, phase by phase."""

from __future__ import annotations

import pytest

from simulator.program.program import Program
from tests.conformance.comparing import captured, flops_of, llama_job, lowered, messages_of, products_of

pytestmark = pytest.mark.slow


def test_flop_of_a_recorded_llama_are_those_of_ours() -> None:
    theirs, ours = (
        captured("fsdp2.py:step", 8),
        lowered(llama_job("torchtitan_eager", 8, zero_stage=3, recompute="none")),
    )

    for phase in ("forward", "backward"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)


def test_products_of_a_recorded_llama_are_those_of_ours_in_shape_and_order_of_operands() -> None:
    theirs, ours = (
        captured("fsdp2.py:step", 8),
        lowered(llama_job("torchtitan_eager", 8, zero_stage=3, recompute="none")),
    )

    for phase in ("forward", "backward"):
        assert products_of(ours, phase) == products_of(theirs, phase)


def test_bytes_of_messages_of_a_recorded_llama_are_those_of_ours() -> None:
    theirs, ours = (
        captured("fsdp2.py:step", 8),
        lowered(llama_job("torchtitan_eager", 8, zero_stage=3, recompute="none")),
    )

    for kind in ("all_gather", "reduce_scatter"):
        assert total(theirs, kind) == pytest.approx(total(ours, kind), rel=1e-9)


def total(program: Program, kind: str) -> float:
    return sum(size * times for (what, _, size, _), times in messages_of(program).items() if what == kind)
