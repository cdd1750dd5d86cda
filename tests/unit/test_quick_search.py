"""The plan that `dtsim run` starts from where none is named."""

from __future__ import annotations

from simulator.job import job_from_names
from simulator.search.quick import quick_search


def test_a_batch_that_leaves_one_replica_has_plans_too() -> None:
    """64 GPUs and 7 sequences: nothing to shard over, so states are whole."""
    job = job_from_names("llama3_8b", "dgx_h100", ["cluster.gpus=64", "workload.global_batch_size=7"])
    found = quick_search(job)
    assert found.best
    assert {0} == {one.point.values["plan.zero_stage"] for one in found.best}


def test_it_starts_from_no_plan_that_says_a_choice_without_a_meaning() -> None:
    """One pipeline rank of two chunks is one pipeline rank; tries that went there were missing for other plans."""
    job = job_from_names("qwen3_30b_a3b", "dgx_h100", ["cluster.gpus=64"])
    tried = [one.point.values for one in quick_search(job).candidates.values()]
    assert {one["plan.pipeline_parallel"] for one in tried} > {1}
    assert all(one["plan.chunks_per_rank"] == 1 for one in tried if one["plan.pipeline_parallel"] == 1)
