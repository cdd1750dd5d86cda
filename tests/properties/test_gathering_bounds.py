"""Bounds of steps that gather sharded weights are below the truth: every code's way to gather, where the network binds."""

from __future__ import annotations

import random

import pytest

from simulator.job import job_from_names
from simulator.search.candidate import look
from simulator.search.space import make_space, read_ranges
from simulator.specs import names

RANGES = [
    "zero_stage=3",
    "tensor_parallel=1,2",
    "pipeline_parallel=1,2,4",
    "chunks_per_rank=1,2",
    "expert_parallel=1,2,4",
    "microbatch_size=1,2",
    "fsdp_unit=1,2,'chunk'",
    "fsdp_gather=microbatch,visit",
    "fsdp_reduce=microbatch,step",
    "fsdp_prefetch=0,2",
    "reshard_after_forward=false,true",
    "secondary_shard_size=2,8",
    "quantized_weights=false,true",
    "parameter_offload=0.0,1.0",
    "recompute=none,full",
]
OPTIONAL = ("fsdp_unit", "fsdp_gather", "fsdp_reduce", "secondary_shard_size", "reshard_after_forward")


@pytest.mark.parametrize("plans", [3, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("framework", names("frameworks"))
def test_a_step_that_gathers_takes_its_bound_at_least(framework: str, plans: int) -> None:
    chance = random.Random(framework)
    left_out = [text for text in RANGES if text.partition("=")[0] in OPTIONAL and chance.random() < 0.6]
    ranges = [text for text in RANGES if text not in left_out]
    model = "mixtral_8x7b" if chance.random() < 0.4 else "llama2_7b"
    settings = [
        f"plan.framework={framework}",
        "cluster.gpus=32",
        "workload.global_batch_size=128",
        "workload.sequence_length=1024",
    ]
    space = make_space(job_from_names(model, "dgx_a100", settings), read_ranges(ranges), {})
    found = 0
    for number in chance.sample(range(space.size), min(space.size, 600)):
        looked = look(space, space.at(number), "step_time")
        candidate = looked.simulated()
        if isinstance(candidate, str):
            continue
        assert looked.bound <= candidate.step_time, candidate.settings
        wasteful = look(space, space.at(number), "energy")
        drawn = wasteful.simulated()
        assert not isinstance(drawn, str)
        assert drawn.energy is not None
        assert wasteful.bound <= drawn.energy, candidate.settings
        found += 1
        if found == plans:
            break
