"""Sequences that tensor-parallel ranks do not divide: refused, or, where a profile says so, padded as DTensor pads them."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import PlanError
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import Program, Segment
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

MODEL = load_model("llama3_8b").model_copy(update={"heads": 24, "kv_heads": 24, "ffn": 12288, "head_dim": 128})
PLAN: dict[str, Any] = {"tensor_parallel": 3, "sequence_parallel": True}


def program(framework: str, length: int, model: Any = MODEL, **plan: Any) -> Program:
    work = Workload(model=model, sequence_length=length, global_batch_size=8)
    return lower(work, Plan(**{**PLAN, "framework": framework, **plan}), 12)


def rows(found: Program) -> list[tuple[str, tuple[int, ...], float, float]]:
    """(label, shape, message, bytes read) of every operator."""
    tables = (table for item in found.items if isinstance(item, Segment) for table, _ in item.pieces)
    return [
        (table.label[i], tuple(table.shape[i].tolist()), float(table.message[i]), float(table.read[i]))
        for table in tables
        for i in range(len(table.label))
    ]


def test_parts_are_those_of_the_next_length_that_divides_and_products_those_of_the_length_itself() -> None:
    """8,192 tokens over 3 ranks: 2,731, 2,731 and 2,730; what lies in parts is as large as of 8,193, what is gathered is 8,192."""
    padded, whole = (rows(program(*of)) for of in (("torchtitan_ezpz", 8192), ("torchtitan_2025", 8193)))
    assert [row[0] for row in padded] == [row[0] for row in whole]
    sequences = [(a, b) for a, b in zip(padded, whole, strict=True) if b[0].endswith(("all_gather", "reduce_scatter"))]
    assert {a[2] for a, _ in sequences} == {2.0 * 8193 * 4096} == {b[2] for _, b in sequences}
    norms = [(a, b) for a, b in zip(padded, whole, strict=True) if "norm" in b[0] and not b[2]]
    assert norms
    assert all(a == b for a, b in norms)
    products = [(a[1], b[1]) for a, b in zip(padded, whole, strict=True) if 8193 in b[1]]
    assert products
    assert all(a == tuple(8192 if n == 8193 else n for n in b) for a, b in products)


def test_several_sequences_are_padded_each() -> None:
    """Batch of 2: 2 x 2,731 tokens, not a third of 16,384 rounded up once."""
    router = next(
        shape
        for label, shape, *_ in rows(
            program(
                "torchtitan_ezpz",
                8192,
                load_model("mixtral_8x7b").model_copy(
                    update={"heads": 24, "kv_heads": 24, "ffn": 12288, "head_dim": 128}
                ),
                microbatch_size=2,
                expert_tensor_parallel=1,
            )
        )
        if label == "router"
    )
    assert router[1] == 2 * 2731


def test_a_length_that_divides_is_as_without() -> None:
    assert rows(program("torchtitan_ezpz", 8193)) == rows(program("torchtitan_2025", 8193))


@pytest.mark.parametrize("framework", ["megatron_core", "torchtitan_2025"])
def test_codes_that_check_the_length_refuse_it(framework: str) -> None:
    with pytest.raises(PlanError, match=r"8192 / 3 is no whole number. Nearest: sequence_length = 8193"):
        program(framework, 8192)
