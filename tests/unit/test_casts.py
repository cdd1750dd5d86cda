"""What a user relies on in the kernels that quantise the operands of products."""

from __future__ import annotations

import pytest

from simulator.costs.memory_bound import memory_bound_seconds
from simulator.hardware.compute_coefficients import load_memory_bound_coefficients
from simulator.hardware.gpu import load_gpu
from simulator.lowering import lower
from simulator.lowering.layers.casts import CAST, TRANSPOSED, TURNED, add_casts
from simulator.lowering.layers.rows import Row, Rows
from simulator.plan.plan import Plan
from simulator.program.program import OperatorTable, Segment
from simulator.workload.model import load_model
from simulator.workload.precision import PRECISIONS, precision_named
from simulator.workload.workload import Workload
from tests.lowered import lowered
from tests.lowered import workload as gpt

MILLION = 1e6


def casts(name: str, after_norm: bool = False, apart: bool = False) -> list[Row]:
    rows = Rows("casts")
    add_casts(rows, "x", MILLION, precision_named(name), after_norm=after_norm, apart=apart, phase="forward")
    return rows.rows


def moved(name: str, after_norm: bool = False, apart: bool = False) -> list[tuple[object, float, float]]:
    """(access, bytes read and written per element) of each row."""
    return [(r.call, r.read / MILLION, r.written / MILLION) for r in casts(name, after_norm, apart)]


@pytest.mark.parametrize("name", ["fp32", "tf32", "fp16", "bf16"])
def test_wide_precisions_cast_nothing(name: str) -> None:
    assert [] == casts(name)


# NVIDIA TransformerEngine, docs/features/low_precision_training: passes over a tensor and copies by recipe.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp8", [(CAST, 2.0, 1.0), (TRANSPOSED, 0.0, 1.0)]),
        ("fp8_current", [(CAST, 4.0, 1.0), (TRANSPOSED, 0.0, 1.0)]),
        ("fp8_rowwise", [(CAST, 6.0, 2.0)]),
        ("fp8_block", [(CAST, 2.0, 2.0 * (1 + 4 / 128))]),
        ("mxfp8", [(CAST, 2.0, 2.0 * (1 + 1 / 32))]),
        ("nvfp4", [(CAST, 4.0, 2.0 * (0.5 + 1 / 16))]),
        ("int8", [(CAST, 8.0, 2.0)]),
    ],
)
def test_a_recipe_reads_and_writes_what_it_says(name: str, expected: list[tuple[str, float, float]]) -> None:
    assert expected == moved(name)


# pytorch/ao: testing/float8/roofline_utils.py, prototype/mx_formats/mx_linear.py and nvfp4_linear.py
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp8_current", [(CAST, 2.0, 1.0), (TRANSPOSED, 1.0, 1.0)]),
        ("mxfp8", [(CAST, 4.0, 2.0 * (1 + 1 / 32))]),
        ("nvfp4", [(TURNED, 4.0, 2.0 * (0.5 + 1 / 16))]),
    ],
)
def test_kernels_apart_read_by_rows_and_by_columns_or_for_a_maximum_first(
    name: str, expected: list[tuple[object, float, float]]
) -> None:
    assert expected == moved(name, apart=True) == moved(name, after_norm=True, apart=True)


def test_turning_an_operand_as_it_is_quantised_takes_as_long_as_published() -> None:
    """pytorch/ao pull request 4487, triton_us on GB200: two kernels, for the maximum and for both copies."""
    gpu = load_gpu("gb200")
    numbers = load_memory_bound_coefficients(gpu)
    for columns, microseconds in ((4096, 17.11 + 24.36), (14336, 27.55 + 60.68), (28672, 43.20 + 113.74)):
        elements = 2048 * columns
        moved = memory_bound_seconds([4.0 * elements], [1.125 * elements], gpu, numbers, ["turned"])[0]
        # what every kernel takes beside its bytes is 23 us in that benchmark, and in a step what starts one
        assert 1e6 * moved + 23 == pytest.approx(microseconds, rel=0.1)


def test_a_norm_writes_the_copy_of_one_recipe_and_finds_the_maximum_for_another() -> None:
    assert [(TRANSPOSED, 1.0, 1.0)] == moved("fp8", after_norm=True)
    assert [(CAST, 2.0, 1.0), (TRANSPOSED, 0.0, 1.0)] == moved("fp8_current", after_norm=True)
    for name in ("fp8_rowwise", "fp8_block", "mxfp8", "nvfp4", "int8"):
        assert moved(name) == moved(name, after_norm=True)


def test_a_kernel_is_launched_per_pass_and_the_second_copy_is_free_of_one() -> None:
    assert [1, 0] == [r.launches for r in casts("fp8")]
    assert [2, 0] == [r.launches for r in casts("fp8_current")]
    assert [1] == [r.launches for r in casts("fp8", after_norm=True)]


def test_every_narrow_recipe_is_priced_on_the_16_bit_activations_it_starts_from() -> None:
    narrow = [p for p in PRECISIONS.values() if p.quantises]
    assert {"fp8", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp4", "nvfp4", "int8"} == {
        p.name for p in narrow
    }
    assert all(p.compute == "bf16" and p.quantised_element < p.element for p in narrow)


def test_what_is_gathered_is_quantised_where_it_lies_and_transposed_where_it_arrives() -> None:
    rows = Rows("casts")
    add_casts(rows, "x", MILLION, precision_named("fp8_current"), shards=4, phase="forward")
    cast, transposed = rows.rows
    assert (4.0 / 4 * MILLION, 1.0 / 4 * MILLION) == (cast.read, cast.written)
    assert (MILLION, MILLION, 1) == (transposed.read, transposed.written, transposed.launches)


def test_sequence_parallel_layers_cast_their_part_of_the_tokens() -> None:
    def read(sequence_parallel: bool) -> float:
        work = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=8, precision="mxfp8")
        plan = Plan(tensor_parallel=8, sequence_parallel=sequence_parallel)
        tables = {t.name: t for item in lower(work, plan, 8).items if isinstance(item, Segment) for t, _ in item.pieces}
        layer = tables["layer forward"]
        return float(layer.read[layer.label.index("qkv cast to mxfp8")])

    assert read(False) == pytest.approx(8 * read(True))


def maxima(precision: str, gpus: int = 8, **plan: object) -> list[tuple[str, str, tuple[str, ...], float]]:
    """(segment, phase, group, message [B]) of every reduction of maxima in a program."""
    program = lowered(gpt(precision=precision), gpus, framework="megatron_core", **plan)
    return [
        (item.name[0], table.phase[i], table.group[i], float(table.message[i]))
        for item in program.items
        if isinstance(item, Segment)
        for table, _ in item.pieces
        for i, label in enumerate(table.label)
        if label == "maxima all_reduce"
    ]


def test_delayed_scaling_reduces_maxima_over_all_ranks_that_hold_a_chunk_in_every_pass() -> None:
    found = maxima("fp8", tensor_parallel=2, pipeline_parallel=2)
    assert {"forward", "backward"} == {phase for _, phase, _, _ in found}
    assert {("dp", "tp")} == {group for _, _, group, _ in found}
    assert all(0 < message < 1e4 for *_, message in found)


@pytest.mark.parametrize("precision", ["bf16", "fp8_current", "mxfp8", "nvfp4"])
def test_other_recipes_need_no_maxima_of_earlier_steps(precision: str) -> None:
    assert [] == maxima(precision, tensor_parallel=2, pipeline_parallel=2)


def test_one_gpu_agrees_with_itself() -> None:
    assert [] == maxima("fp8", gpus=1)


def test_the_weight_gradients_of_a_split_backward_find_no_maxima() -> None:
    found = maxima("fp8", pipeline_parallel=2, schedule="zb_h1")
    assert {"F", "B", "I"} >= {action for action, *_ in found} >= {"F", "I"}


def test_products_of_gradients_without_scales_of_rows_are_multiplied_by_them_afterwards() -> None:
    """TorchAO (pull request 1325): 2 bytes of the result read and written, backward alone; and what ranks gather is wide."""

    def layer(precision: str) -> tuple[OperatorTable, OperatorTable]:
        work = Workload(model=load_model("llama3_8b"), sequence_length=2048, global_batch_size=8, precision=precision)
        plan = Plan(framework="torchtitan", tensor_parallel=4, sequence_parallel=True)
        tables = {t.name: t for i in lower(work, plan, 8).items if isinstance(i, Segment) for t, _ in i.pieces}
        return tables["layer forward"], tables["layer backward"]

    forward, backward = layer("fp8_rowwise")
    done = {
        label: (backward.read[i], backward.written[i])
        for i, label in enumerate(backward.label)
        if label.endswith("rescaled")
    }
    assert done["mlp down weight gradient rescaled"] == (2 * 4096 * 14336 / 4,) * 2
    assert done["mlp down input gradient rescaled"] == (2 * 2048 * 14336 / 4,) * 2
    assert len(done) == 8
    assert not [label for label in forward.label if label.endswith("rescaled")]
    whole, _ = layer("fp8_current")
    gathered = [
        t.message[t.label.index("mlp up all_gather")] if "mlp up all_gather" in t.label else 0.0
        for t in (forward, whole)
    ]
    assert gathered[0] == 2 * gathered[1] > 0
