"""How codes deal layers out over chunks where a plan has no split."""

from __future__ import annotations

import pytest

from simulator.job import job_from_names
from simulator.lowering import begin, resolve


def layers_of(model: str, framework: str, *settings: str) -> list[int]:
    said = ["workload.global_batch_size=64", f"plan.framework={framework}", *[f"plan.{text}" for text in settings]]
    job = job_from_names(model, "dgx_h100", [*said, "cluster.gpus=32"])
    state = begin(job.workload, resolve(job.workload, job.plan, job.cluster.world_size))
    return [chunk.layers for chunk in state.chunks]


@pytest.mark.parametrize(
    ("model", "framework", "settings", "expected"),
    [
        ("llama3_8b", "megatron_core", ["pipeline_parallel=4"], [8, 8, 8, 8]),
        ("llama3_8b", "torchtitan_2025", ["pipeline_parallel=4"], [8, 9, 8, 7]),
        ("llama3_8b", "torchtitan_2025", ["pipeline_parallel=2", "chunks_per_rank=2"], [8, 9, 8, 7]),
        ("llama3_8b", "torchtitan_2025", ["pipeline_parallel=2", "layer_split=[20, 12]"], [20, 12]),
        ("llama3_8b", "torchtitan_2025", ["pipeline_parallel=1"], [32]),
        # 32 layers of 243 million weights by its formula, and a head of 525 million
        ("llama3_8b", "nanotron", ["pipeline_parallel=2"], [18, 14]),
        ("llama3_8b", "nanotron", ["pipeline_parallel=8"], [5, 4, 4, 5, 4, 4, 4, 2]),
    ],
)
def test_chunks_have_the_layers_that_the_code_gives_them(
    model: str, framework: str, settings: list[str], expected: list[int]
) -> None:
    assert layers_of(model, framework, *settings) == expected


def test_models_with_two_stacks_are_dealt_out_evenly_by_every_code() -> None:
    assert layers_of("t5_11b", "nanotron", "pipeline_parallel=2") == [24, 24]
