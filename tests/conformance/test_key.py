"""A Llama that was recorded equals our own lowering of it: FLOP and bytes of messages to 1e-9, phase by phase."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace

import pytest

from simulator.program.program import Program
from tests.conformance.comparing import ANEW, captured, flops_of, llama_job, lowered, messages_of, products_of
from tests.conformance.test_plans import SHARDED

pytestmark = pytest.mark.slow


def recorded_and_ours() -> tuple[Program, Program]:
    return captured("fsdp2.py:step", 8), lowered(llama_job(gpus=8, **SHARDED))


def test_flop_of_a_recorded_llama_are_those_of_ours() -> None:
    theirs, ours = recorded_and_ours()

    for phase in ("forward", "backward"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)


def test_products_of_a_recorded_llama_are_those_of_ours_in_shape_and_order_of_operands() -> None:
    theirs, ours = recorded_and_ours()

    for phase in ("forward", "backward"):
        assert products_of(ours, phase) == products_of(theirs, phase)


def test_bytes_of_messages_of_a_recorded_llama_are_those_of_ours() -> None:
    theirs, ours = recorded_and_ours()

    for kind in ("all_gather", "reduce_scatter"):
        assert total(theirs, kind) == pytest.approx(total(ours, kind), rel=1e-9)


LARGE = {
    "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocabulary": 128256, "sequence_length": 8192,
}  # fmt: skip
WORDS = "--code titan --layers 80 --hidden 8192 --heads 64 --groups 8 --width 28672 --vocabulary 128256 --tokens 8192 --batch 1"


def test_seventy_billion_weights_on_a_thousand_ranks_are_recorded_in_four_gigabytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of tensors without data: the process that runs the script holds what PyTorch and a list of operators take, where it runs."""
    start = time.monotonic()
    theirs = captured("eager.py:step", 1024, f"{WORDS} --recompute full --accumulate 1")
    with capsys.disabled():
        if ANEW in os.environ:
            print(f"\n70 billion weights on 1,024 ranks: {time.monotonic() - start:.0f} s")
    most = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    job = llama_job("torchtitan_eager", 1024, model=LARGE, zero_stage=3, recompute="full")
    ours = lowered(replace(job, workload=replace(job.workload, sequence_length=8192)))

    assert most < 4e9
    assert len(theirs.items) < 100 < theirs.size
    for phase in ("forward", "backward"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)


def total(program: Program, kind: str) -> float:
    return sum(size * times for (what, _, size, _), times in messages_of(program).items() if what == kind)
