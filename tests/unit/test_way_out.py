"""What a refusal names as the nearest plan is one."""

from __future__ import annotations

import re

import pytest

from simulator.errors import PlanError
from simulator.job import load_job
from simulator.lowering import resolve
from simulator.simulation import simulate_job


@pytest.mark.parametrize(
    "wrong", ["tensor_parallel=3", "tensor_parallel=5", "pipeline_parallel=96", "pipeline_parallel=97"]
)
def test_the_nearest_degrees_work(wrong: str) -> None:
    job = load_job("gpt3_175b", [f"plan.{wrong}"])
    with pytest.raises(PlanError, match="must equal the world size") as refused:
        simulate_job(job)
    named = re.findall(r"(\w+) = (\w+)", str(refused.value).partition("Nearest: ")[2])
    assert named
    other = load_job("gpt3_175b", [f"plan.{field}={value}" for field, value in named])
    resolve(other.workload, other.plan, other.cluster.world_size)


def test_degrees_that_nothing_else_allows_are_not_called_a_way_out() -> None:
    job = load_job("gpt3_175b", ["cluster.gpus=7"])
    with pytest.raises(PlanError, match=r"What multiplies to it \(something else must change, too\)"):
        simulate_job(job)
