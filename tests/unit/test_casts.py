"""What a user relies on in the kernels that quantise the operands of products."""

from __future__ import annotations

import pytest

from simulator.lowering.casts import TRANSPOSED, add_casts
from simulator.lowering.rows import Rows
from simulator.workload.precision import PRECISIONS, precision_named

MILLION = 1e6


def casts(name: str, after_norm: bool = False) -> list[dict[str, object]]:
    rows = Rows("casts")
    add_casts(rows, "x", MILLION, precision_named(name), after_norm=after_norm, phase="forward")
    return rows.rows


def moved(name: str, after_norm: bool = False) -> list[tuple[object, float, float]]:
    """(access, bytes read and written per element) of each row."""
    return [(r["layout"], r["read"] / MILLION, r["written"] / MILLION) for r in casts(name, after_norm)]


@pytest.mark.parametrize("name", ["fp32", "tf32", "fp16", "bf16"])
def test_wide_precisions_cast_nothing(name: str) -> None:
    assert [] == casts(name)


# NVIDIA TransformerEngine, docs/features/low_precision_training: passes over a tensor and copies by recipe.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp8", [("cast", 2.0, 1.0), (TRANSPOSED, 0.0, 1.0)]),
        ("fp8_current", [("cast", 4.0, 1.0), (TRANSPOSED, 0.0, 1.0)]),
        ("fp8_block", [("cast", 2.0, 2.0 * (1 + 4 / 128))]),
        ("mxfp8", [("cast", 2.0, 2.0 * (1 + 1 / 32))]),
        ("nvfp4", [("cast", 4.0, 2.0 * (0.5 + 1 / 16))]),
    ],
)
def test_a_recipe_reads_and_writes_what_it_says(name: str, expected: list[tuple[str, float, float]]) -> None:
    assert expected == moved(name)


def test_a_norm_writes_the_copy_of_one_recipe_and_finds_the_maximum_for_another() -> None:
    assert [(TRANSPOSED, 1.0, 1.0)] == moved("fp8", after_norm=True)
    assert [("cast", 2.0, 1.0), (TRANSPOSED, 0.0, 1.0)] == moved("fp8_current", after_norm=True)
    for name in ("fp8_block", "mxfp8", "nvfp4"):
        assert moved(name) == moved(name, after_norm=True)


def test_a_kernel_is_launched_per_pass_and_the_second_copy_is_free_of_one() -> None:
    assert [1, 0] == [r["launches"] for r in casts("fp8")]
    assert [2, 0] == [r["launches"] for r in casts("fp8_current")]
    assert [1] == [r["launches"] for r in casts("fp8", after_norm=True)]


def test_every_narrow_recipe_is_priced_on_the_16_bit_activations_it_starts_from() -> None:
    narrow = [p for p in PRECISIONS.values() if p.quantises]
    assert {"fp8", "fp8_current", "fp8_block", "mxfp8", "nvfp4"} == {p.name for p in narrow}
    assert all(p.compute == "bf16" and p.quantised_element < p.element for p in narrow)
