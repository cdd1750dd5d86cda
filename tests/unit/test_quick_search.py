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
