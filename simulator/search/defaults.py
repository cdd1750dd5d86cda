"""The ranges of a search that names none: what is usual for a model on a cluster, and of it what the framework runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulator.errors import SimulatorError, SpecError
from simulator.job import Job
from simulator.plan.framework import load_framework
from simulator.search.split import BALANCED, TIMED

__all__ = ["default_ranges", "offered_ranges", "worlds"]

_SPLIT = "plan.layer_split"
_LARGEST_DEFAULT_DEGREE = 64
_DEPENDENTS = {
    "plan.tensor_parallel": ("plan.sequence_parallel",),
    "plan.pipeline_parallel": ("plan.chunks_per_rank", _SPLIT),
}
"""Degree -> what it alone gives a meaning to."""


def offered_ranges(job: Job, any_framework: bool) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
    """Return the ranges of a search that names none, and what is left out of them since the job's framework does not run it.

    Args:
        any_framework: whether nothing is left out.
    """
    framework = load_framework(job.plan.framework)
    kept: dict[str, tuple[Any, ...]] = {}
    left_out: dict[str, tuple[Any, ...]] = {}
    for field, values in default_ranges(job).items():
        name = field.partition(".")[2]
        able = tuple(v for v in values if any_framework or v == BALANCED or framework.can(name, v))
        if len(able) < len(values):
            left_out[field] = tuple(v for v in values if v not in able)
        if able:
            kept[field] = able
    for field, dependents in _DEPENDENTS.items():
        if kept.get(field) == (1,):
            kept = {name: values for name, values in kept.items() if name not in dependents}
    return kept, left_out


def default_ranges(job: Job) -> dict[str, tuple[Any, ...]]:
    """Return the ranges of a search that names none: the degrees, how batches are cut, what is sharded and recomputed.

    Tensor parallelism goes to twice the node; layers are dealt out evenly or by time; context parallelism is there from 16,384 tokens
    on, expert parallelism for models with experts.
    """
    model, world, node = job.workload.model, job.cluster.world_size, job.cluster.gpus_per_node
    length = job.workload.sequence_length
    tensor = tuple(t for t in _powers(min(2 * node, world)) if model.heads % t == 0)
    ranges: dict[str, tuple[Any, ...]] = {
        "plan.tensor_parallel": tensor,
        "plan.sequence_parallel": (False, True) if len(tensor) > 1 else (False,),
        "plan.pipeline_parallel": tuple(p for p in _powers(min(model.depth, world, _LARGEST_DEFAULT_DEGREE))),
        "plan.chunks_per_rank": (1, 2, 4),
        "plan.microbatch_size": (1, 2, 4),
        "plan.zero_stage": (0, 1, 3),
        "plan.recompute": ("none", "selective", "full"),
    }
    if length >= 2**14:
        ranges["plan.context_parallel"] = tuple(c for c in _powers(min(16, world)) if length % (2 * c) == 0)
    if len(ranges["plan.pipeline_parallel"]) > 1 and not model.encoder_layers:
        ranges[_SPLIT] = (BALANCED, TIMED)
    if model.experts:
        ranges["plan.expert_parallel"] = tuple(
            e for e in _powers(min(model.experts, world, 64)) if model.experts % e == 0
        )
    return {field: values for field, values in ranges.items() if len(values) > 1}


def _powers(limit: int) -> Iterator[int]:
    value = 1
    while value <= limit:
        yield value
        value *= 2


def worlds(job: Job, most: int) -> tuple[int, ...]:
    """Return the numbers of GPUs up to `most` that a search may choose: parts of a node by powers of two, then nodes by powers of two.

    Raises:
        SpecError: fewer than one.
    """
    if most < 1:
        raise SpecError(f"--gpus at-most takes a number above zero, got {most}")
    node = job.cluster.gpus_per_node
    found = []
    for gpus in (*(g for g in _powers(node) if node % g == 0), *(node * n for n in _powers(max(1, most // node)))):
        try:
            job.cluster.resized(gpus)
        except SimulatorError:
            continue
        if gpus <= most:
            found.append(gpus)
    return tuple(dict.fromkeys(found))
