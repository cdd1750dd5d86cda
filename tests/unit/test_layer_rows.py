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


def forward(
    framework: str, precision: str = "bf16", model: str = "llama3_8b", activation: str = "", **plan: Any
) -> OperatorTable:
    shape = load_model(model).model_copy(update={"activation": activation})
    tokens = min(TOKENS, shape.sequence_length)
    work = Workload(model=shape, sequence_length=tokens, global_batch_size=8, precision=precision)
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


def bytes_of(table: OperatorTable, label: str) -> tuple[float, float]:
    """Bytes per number that kernels of a layer read and write."""
    rows = [i for i, found in enumerate(table.label) if found == label]
    numbers = 2048.0 * 2048.0
    return float(table.read[rows].sum()) / numbers, float(table.written[rows].sum()) / numbers


@pytest.mark.parametrize(
    ("framework", "model", "norm", "added"),
    [
        # LayerNorm on an fp32 stream, and a cast for the one product that reads it; the sum reads a 16-bit and an fp32 number
        ("pytorch_ddp", "gpt3_1_3b", (4.0 + 4.0, 4.0 + 2.0), (2.0 + 4.0, 4.0)),
        # compiled: the norm writes the operand itself
        ("pytorch_ddp_compiled", "gpt3_1_3b", (4.0, 2.0), (2.0 + 4.0, 4.0)),
        ("pytorch_fsdp", "gpt3_1_3b", (2.0, 2.0), (4.0, 2.0)),
    ],
)
def test_under_autocast_the_residual_stream_is_fp32(
    framework: str, model: str, norm: tuple[float, float], added: tuple[float, float]
) -> None:
    table = forward(framework, model=model)
    assert norm == bytes_of(table, "attention norm")
    assert added == bytes_of(table, "attention residual")
    casts = [label for label in table.label if label.endswith("weight cast")]
    assert len(casts) == (0 if framework == "pytorch_fsdp" else 4)
    assert not [label for label in forward(framework, "bf16_true", model).label if label.endswith("weight cast")]


def test_under_autocast_weights_are_cast_once_per_forward_pass() -> None:
    """GPT-3 of 1.3B: products of 3, 1, 4 and 4 times 2048^2 weights, read in fp32 and written in 16 bits."""
    table = forward("pytorch_ddp", model="gpt3_1_3b")
    rows = [i for i, label in enumerate(table.label) if label.endswith("weight cast")]
    assert [4.0 * n * 2048**2 for n in (3, 1, 4, 4)] == table.read[rows].tolist()
    assert [2.0 * n * 2048**2 for n in (3, 1, 4, 4)] == table.written[rows].tolist()


@pytest.mark.parametrize(
    ("framework", "activation", "kernels", "read", "written"),
    [
        # in 16 bits: eight operations, of which the sum and the product read two tensors
        ("pytorch_fsdp", "gelu_new", 8, 2.0 * 10, 2.0 * 8),
        ("pytorch_fsdp", "gelu_python", 5, 2.0 * 6, 2.0 * 5),
        # under autocast powers are fp32, and what follows them: a cast in, one out
        ("pytorch_ddp", "gelu_new", 8, 2 + 2 + 4 + 4 + 6 + 4 + 4 + 4 + 6 + 4, 2 + 8 * 4 + 2),
        ("pytorch_ddp", "gelu_python", 5, 2.0 * 6, 2.0 * 5),
        # a code that fuses point-wise operations has one kernel
        ("pytorch_ddp_compiled", "gelu_new", 1, 2.0, 2.0),
    ],
)
def test_an_activation_function_written_out_is_a_kernel_for_each_operation(
    framework: str, activation: str, kernels: int, read: float, written: float
) -> None:
    table = forward(framework, model="gpt3_1_3b", activation=activation)
    row = table.label.index("gelu")
    assert kernels == table.launches[row]
    assert (4 * read, 4 * written) == bytes_of(table, "gelu")  # of an inner width four times the hidden one


def test_what_a_fused_kernel_keeps_for_operations_inside_it_is_written_and_read_again() -> None:
    """Thunder: a norm's fp32 and 16-bit results, and that of the gate's function."""
    for label, kept in (("attention norm", 6.0), ("swiglu", 2.0)):
        kept_table, plain = forward("thunder"), forward("pytorch_fsdp_fused")
        row = plain.label.index(label)
        width = 14336 if label == "swiglu" else HIDDEN
        assert kept * TOKENS * width == kept_table.written[kept_table.label.index(label)] - plain.written[row]


def test_an_eager_layer_moves_what_a_recording_of_it_moves() -> None:
    """GPT-2's layer of 1,024 under autocast, 8 sequences of 1,024, forward: dtsim capture of torch 2.13 counts 336 and 248 MiB.

    Biases are added by the products; norms write fp32 numbers, which are cast, and so are weights."""
    work = Workload(model=load_model("gpt2_355m"), sequence_length=1024, global_batch_size=8)
    program = lower(work, Plan(framework="pytorch_ddp", microbatch_size=8), 1)
    tables = {t.name: t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces}
    table = tables["layer forward"]
    rows = [i for i, work in enumerate(table.work) if work == "memory_bound"]
    assert [336.0, 248.0] == [float(moved[rows].sum()) / 2**20 for moved in (table.read, table.written)]
    label = tables["layer backward"].label.index("attention copies")  # gradients of queries, keys and values are joined
    assert [48.0, 48.0] == [
        moved[label] / 2**20 for moved in (tables["layer backward"].read, tables["layer backward"].written)
    ]


def test_norms_of_torch_and_apex_are_told_from_those_that_sum_in_passing() -> None:
    """One kernel either way; PyTorch's makes the sums over tokens by another, and is slower (memory_bound_ampere.toml, norm_share)."""
    for framework, access in (("pytorch_ddp", "norm"), ("megatron_core", "layer")):
        table = forward(framework, model="gpt3_1_3b")
        assert Traffic(access) == table.call[table.label.index("attention norm")]


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
