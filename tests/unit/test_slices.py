"""Lists of tensors around a collective: what the host's loop over ranks adds to its time."""

from __future__ import annotations

import pytest

from simulator.costs.price import price
from simulator.costs.slices import slice_seconds
from simulator.hardware.cluster import load_cluster
from simulator.hardware.compute_coefficients import load_memory_bound_coefficients
from simulator.hardware.gpu import load_gpu
from simulator.lowering import lower
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.program.program import Link
from simulator.program.text import parse_text, render_text
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

GPU = load_gpu("a100_80gb_sxm")
MEMORY = load_memory_bound_coefficients(GPU)


def test_the_slower_of_host_and_device_counts() -> None:
    small, waits = slice_seconds(1536, 2.0**20, 7e-6, GPU, MEMORY)
    assert (small, waits) == (pytest.approx(1536 * 7e-6), True)
    large, waits = slice_seconds(8, 2.0**32, 7e-6, GPU, MEMORY)
    assert not waits
    assert large > 2 * 2.0**32 / GPU.memory_bandwidth
    assert slice_seconds(0, 2.0**32, 7e-6, GPU, MEMORY) == (0.0, False)


def test_more_ranks_cost_a_list_more_time_and_a_flat_message_hardly() -> None:
    work = Workload(model=load_model("gpt3_175b"), sequence_length=2048, global_batch_size=512)

    def seconds(framework: str, ranks: int) -> float:
        program = lower(work, Plan(zero_stage=3, framework=framework, data_parallel=ranks), ranks)
        prices = price(program, load_cluster("selene", ranks))
        gathers = [
            i for i, item in enumerate(program.items) if isinstance(item, Link) and "weights of layer" in item.name
        ]
        return float(prices.occupancy[gathers[0]])

    list_time = load_framework("deepspeed_2021").slice_time
    listed, flat = ([seconds(name, n) for n in (256, 512)] for name in ("deepspeed_2021", "deepspeed"))
    assert listed[1] - listed[0] > 0.8 * 256 * list_time
    assert listed[0] > flat[0]


def test_slices_are_part_of_the_text_form() -> None:
    work = Workload(model=load_model("gpt2_355m"), sequence_length=1024, global_batch_size=8)
    program = lower(work, Plan(zero_stage=3, framework="deepspeed_2021", data_parallel=8), 8)
    text = render_text(program)
    assert " slices=8" in text
    assert render_text(parse_text(text)) == text
