"""DeepSpeed's ways with gradients: whole buckets, wider copies, flat tensors."""

from __future__ import annotations

import pytest

from simulator.program.program import Segment
from tests.lowered import links, lowered, workload


def test_narrow_gradients_beside_wide_ones_are_cast_and_then_added() -> None:
    """Bytes per weight and microbatch: read 2, write and read 4, read 4, write 4; where the product's kernel casts, 10, but
    6 of the first of eight, which autograd takes as it is."""

    def moved(framework: str) -> float:
        program = lowered(workload("gpt2_355m", batch=8, length=1024), 1, framework=framework, gradient_dtype="fp32")
        tables = {id(t): t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces}.values()
        found = [
            (t.read[j] + t.written[j], t.shape[j - 1].prod() / t.shape[j - 1][3])
            for t in tables
            for j, label in enumerate(t.label)
            if label == "mlp up gradient accumulation"
        ]
        return float(found[0][0] / found[0][1])

    assert (moved("pytorch_ddp"), moved("megatron_deepspeed")) == (9.5, 18.0)


def test_flat_copies_of_gradients_take_time_in_the_optimizer_step() -> None:
    """Bytes per weight: into a bucket and back 8, to fp32 and into one tensor 14; with ZeRO-1 no way back, and 10 for a share."""

    def moved(stage: int) -> float:
        program = lowered(workload("gpt2_355m", length=1024), 4, framework="megatron_deepspeed", zero_stage=stage)
        rows = [
            t.read[j] + t.written[j]
            for i in program.items
            if isinstance(i, Segment)
            for t, _ in i.pieces
            for j, label in enumerate(t.label)
            if label == "flatten gradients"
        ]
        return float(sum(rows))

    assert moved(0) / moved(1) == pytest.approx((8 + 14) / (4 + 10 / 4), rel=1e-6)


def test_deepspeed_of_today_all_reduces_the_gradients_that_zero_2_shards() -> None:
    def summed(framework: str) -> float:
        program = lowered(workload(), 4, data_parallel=4, zero_stage=2, framework=framework)
        return sum(i.message * n for i, n in links(program, "all_reduce") if "gradients" in i.name)

    assert summed("deepspeed_2021") == 0.0 < summed("deepspeed")
