"""Where tensor-parallel ranks share the sending of activations, every pass begins with gathering them."""

from __future__ import annotations

import pytest

from simulator.costs.price import price
from simulator.hardware.cluster import load_cluster
from simulator.program.program import TRANSFER, Link, OperatorTable, Segment
from tests.lowered import lowered, workload

PLAN = {"tensor_parallel": 2, "pipeline_parallel": 4, "microbatch_size": 2, "recompute": "none"}
ACTIVATION = 2 * 1024 * 1024 * 2.0
"""Bytes of two sequences of 1,024 tokens of GPT-2 355M."""


def gathers(framework: str, **plan: object) -> dict[str, OperatorTable]:
    """The tables that put together what was received, by the name of the segment that begins with them."""
    program = lowered(workload("gpt2_355m", length=1024), 8, framework=framework, **{**PLAN, **plan})
    return {
        i.name: i.pieces[0][0]
        for i in program.items
        if isinstance(i, Segment) and i.pieces and i.pieces[0][0].name.startswith("received")
    }


def test_megatron_gathers_what_arrives_and_deepspeed_its_own_output_too() -> None:
    for framework, backward in (("megatron_lm", 1), ("megatron_deepspeed", 2)):
        found = gathers(framework)
        times = {name[0]: [t.message.tolist()[::2] for n, t in found.items() if n[0] == name[0]] for name in found}
        assert times["F"] == [[ACTIVATION]] * 2, "ranks in the middle, and the last one"
        assert times["B"] == [[ACTIVATION] * backward] * 2, "ranks in the middle, and the first one"


def test_lists_of_tensors_are_copied_out_and_partitioned_tensors_cleared_and_cloned() -> None:
    """Passes over the tensor: read 1 and write 1; read 2 and write 3."""
    moved = [
        next((t.read[1] / ACTIVATION, t.written[1] / ACTIVATION) for t in gathers(f).values())
        for f in ("megatron_lm", "megatron_deepspeed")
    ]
    assert moved == [(1, 1), (2, 3)]


@pytest.mark.parametrize(
    "plan",
    [{"sequence_parallel": True}, {"tensor_parallel": 1}, {"pipeline_parallel": 1}, {"framework": "megatron_core"}],
)
def test_whole_or_divided_activations_are_not_gathered(plan: dict[str, object]) -> None:
    assert not gathers(**{"framework": "megatron_lm", **plan})


def test_the_host_waits_for_the_description_of_a_part_only_where_there_are_parts() -> None:
    """Beside the hop itself, 0.3 ms are for the host."""

    def latency(tensor: int) -> float:
        program = lowered(
            workload("gpt2_355m", length=1024), 8, framework="megatron_deepspeed", **{**PLAN, "tensor_parallel": tensor}
        )
        prices = price(program, load_cluster("dgx_a100", 8))
        hops = [i for i, item in enumerate(program.items) if isinstance(item, Link) and item.kind == TRANSFER]
        return float(prices.latency[hops[0]])

    assert latency(1) < 1e-4 < 3e-4 < latency(2)
