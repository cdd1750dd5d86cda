"""A good plan in a second: a small space around what is usual, searched with a fixed effort, so that every machine finds the same."""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.job import Job
from simulator.search.answer import Answer
from simulator.search.candidate import Candidate
from simulator.search.defaults import offered_ranges
from simulator.search.search import search
from simulator.search.space import Space, make_space
from simulator.search.split import SPLIT

__all__ = ["changed_fields", "proposed", "quick_search", "quick_space"]

_TRIES = 48
_NEARLY = 0.02
"""A simpler plan is taken that is slower than the quickest by no more than this part."""
_RANGES = {
    "plan.chunks_per_rank": (1, 2),
    "plan.microbatch_size": (1, 2),
    "plan.zero_stage": (1, 3),
}


def quick_space(job: Job) -> Space:
    """Return the plans that are tried for a job, its framework and kernels kept: degrees, tensor parallelism within a node."""
    offered = offered_ranges(job, any_framework=False, whole=False).ranges
    ranges: dict[str, tuple[object, ...]] = {}
    for field, values in offered.items():
        chosen: tuple[object, ...] = _RANGES.get(field, values)
        if field == "plan.microbatch_size" and job.workload.model.network:
            chosen = values
        if field == "plan.tensor_parallel":
            chosen = tuple(degree for degree in values if degree <= job.cluster.node.gpus)
        if field == "plan.zero_stage" and math.gcd(job.cluster.world_size, job.workload.global_batch_size) == 1:
            chosen = (0,)  # one replica, whatever the other degrees: nothing to shard over
        ranges[field] = chosen
    ranges.pop(SPLIT, None)
    plain = {"plan.schedule": (None,), SPLIT: (None,), "plan.data_parallel": (None,)}
    return replace(make_space(job, ranges, plain), offered=True)


def quick_search(job: Job, probability: float = 0.9, near: bool = False, tries: int = _TRIES) -> Answer:
    """Return the answer of a small search; it proves nothing where the effort did not suffice.

    Args:
        job: what is trained, on what; its plan says what no plan of the space does.
        probability: with which a plan must fit.
        near: among ties the smallest change from the job's own plan is chosen, not the simplest plan.
        tries: how many plans are simulated at most.
    """
    space = quick_space(job)
    like = {field: getattr(job.plan, field.partition(".")[2]) for field in space.ranges} if near else None
    return search(space, "descent", fit_probability=probability, top=5, tries=tries, like=like)


def proposed(job: Job) -> tuple[Answer, Candidate | None]:
    """Return a quick search and the plan to start from: the simplest of those nearly as quick as the quickest that fits; where none
    fits, the one that lacks least; None where no plan can be."""
    answer = quick_search(job)
    return answer, answer.nearly_best(_NEARLY) or answer.nearest


def changed_fields(job: Job, answer: Answer, found: Candidate) -> dict[str, object]:
    """Return what a plan that was found changes of the job's own: field of the plan -> value; None = back to the default."""
    old, new = job.plan, answer.space.job_of(found.point).plan
    out = {name: value for name, value in new if value != getattr(old, name)}
    if old.data_parallel is not None:
        out["data_parallel"] = job.cluster.world_size // new.model_parallel_size
    if "schedule" in out and new.pipeline_parallel > 1:
        out["schedule"] = "one_f_one_b" if new.chunks_per_rank == 1 else "interleaved_1f1b"
    return out
