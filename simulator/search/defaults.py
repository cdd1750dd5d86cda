"""The ranges of a search that names none: what is usual for a model on a cluster, what a framework's code has beside it, and of all
that what it runs.

Some choices matter beside others alone (`_BESIDE`); plans that have them beside nothing are refused, since they are there without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from simulator.errors import SimulatorError, SpecError
from simulator.job import Job
from simulator.plan.framework import load_framework
from simulator.schedules import SCHEDULES
from simulator.search.split import BALANCED, SPLIT, TIMED

__all__ = ["LONG", "default_ranges", "offered_ranges", "repeated", "said_once", "worlds"]

Ranges = dict[str, tuple[Any, ...]]
LONG = 2**14
"""Tokens of a sequence from which on several GPUs may share one."""
_LARGEST_DEFAULT_DEGREE = 64
_MOST, _MOST_OF_ANY = 100_000, 2_000_000
"""Plans up to which a space takes in what is not usual: a quarter of a minute, or minutes for what no framework runs."""


class Offered(NamedTuple):
    """The ranges of a search that names none.

    Args:
        ranges: field -> values.
        left_out: what the framework does not run.
        untried: what would make the space too large.
    """

    ranges: Ranges
    left_out: Ranges
    untried: Ranges


_DEPENDENTS = {
    "plan.tensor_parallel": ("plan.sequence_parallel",),
    "plan.pipeline_parallel": ("plan.chunks_per_rank", "plan.schedule", SPLIT),
}
"""Degree -> what it alone gives a meaning to."""


def offered_ranges(job: Job, any_framework: bool, without: Collection[str] = (), whole: bool = True) -> Offered:
    """Return the ranges of a search that names none, and what is left out of them.

    Args:
        any_framework: whether nothing is left out.
        without: fields that are fixed.
        whole: whether they have `further_ranges`, too.
    """
    framework = load_framework(job.plan.framework)
    kept: Ranges = {}
    left_out: Ranges = {}
    untried: Ranges = {}
    most = _MOST_OF_ANY if any_framework else _MOST
    usual = default_ranges(job)
    for field, values in (usual | (further_ranges(job, any_framework) if whole else {})).items():
        if field in without:
            continue
        name = field.partition(".")[2]
        able = tuple(v for v in values if any_framework or v == BALANCED or framework.can(name, v))
        if len(able) < len(values):
            left_out[field] = tuple(v for v in values if v not in able)
        before = math.prod(len(some) for name, some in kept.items() if name != field)
        if field not in usual and before * len(able) > most:
            untried[field] = able
        elif able and able != (None,):
            kept[field] = able
    for field, dependents in _DEPENDENTS.items():
        if kept.get(field) == (1,):
            kept = {name: values for name, values in kept.items() if name not in dependents}
    return Offered(kept, left_out, untried)


def further_ranges(job: Job, any_framework: bool) -> Ranges:
    """Return what a framework's code has beside `default_ranges`: its other schedules, kinds and modules of recompute; groups of ZeRO-3 as
    large as a node where there are several; and the optimizer on the host where the states alone fill much of the GPUs.

    Of a framework that nobody looked up only `any_framework` has other schedules and modules.
    """
    model, world, node = job.workload.model, job.cluster.world_size, job.cluster.gpus_per_node
    told = bool(load_framework(job.plan.framework).supports) or any_framework
    usual = ("one_f_one_b", "interleaved_1f1b")  # what a plan that names none has
    fitting = {name: one for name, one in SCHEDULES.members.items() if one.flush and name not in usual}
    if not model.experts:
        fitting.pop("combined_1f1b")
    ranges: Ranges = {}
    if told:
        ranges["plan.schedule"] = (None, *fitting)
        ranges["plan.recompute"] = ("none", "selective", "operators", "full")
        ranges["plan.recompute_modules"] = (None, ["layernorm"], ["moe_act"] if model.experts else ["mlp"])
    if world > node:
        ranges["plan.shard_size"] = (None, node)
    if _STATES * model.parameters > _TIGHT * world * job.cluster.gpu.usable_memory:
        ranges["plan.optimizer_offload"] = (0.0, 1.0)
    return ranges


_STATES = 16.0
"""Bytes of a weight with its gradient and Adam's states, about."""
_TIGHT = 0.3
"""Part of all GPUs from which on the host is asked for room."""
_BESIDE: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    "plan.chunks_per_rank": ("plan.pipeline_parallel", lambda degree: degree > 1, "pipeline_parallel > 1"),
    "plan.schedule": ("plan.pipeline_parallel", lambda degree: degree > 1, "pipeline_parallel > 1"),
    "plan.recompute_modules": ("plan.recompute", lambda kind: kind == "selective", "recompute = selective"),
    "plan.shard_size": ("plan.zero_stage", lambda stage: stage == 3, "zero_stage = 3"),
}
"""Field -> what it needs beside it in these ranges, and in words."""


def repeated(values: Mapping[str, object]) -> str:
    """Return why a plan of these ranges is another one of them, said twice; "" = it is not."""
    for field, (other, holds, words) in _BESIDE.items():
        if values.get(field) not in (None, 1) and other in values and not holds(values[other]):
            return f"{field.partition('.')[2]} is tried beside {words}: here the plan without it is the same, or left to --range"
    return ""


def said_once(ranges: Mapping[str, tuple[Any, ...]], values: Mapping[str, object]) -> dict[str, object]:
    """Return a plan of these ranges without what has no meaning beside its other values (`repeated`), where that is one of them."""
    out = dict(values)
    for field, (other, holds, _) in _BESIDE.items():
        none = next((value for value in ranges.get(field, ()) if value in (None, 1)), out.get(field))
        if field in out and other in out and not holds(out[other]):
            out[field] = none
    return out


def default_ranges(job: Job) -> Ranges:
    """Return the ranges of a search that names none: the degrees, how batches are cut, what is sharded and recomputed.

    Tensor parallelism goes to twice the node; layers are dealt out evenly or by time; context parallelism is there from 16,384 tokens
    on, expert parallelism for models with experts.  Images come in microbatches of any power of two.
    """
    model, world, node = job.workload.model, job.cluster.world_size, job.cluster.gpus_per_node
    length = job.workload.sequence_length
    tensor = tuple(t for t in _powers(min(2 * node, world)) if model.heads % t == 0)
    ranges: Ranges = {
        "plan.tensor_parallel": tensor,
        "plan.sequence_parallel": (False, True) if len(tensor) > 1 else (False,),
        "plan.pipeline_parallel": tuple(p for p in _powers(min(model.depth, world, _LARGEST_DEFAULT_DEGREE))),
        "plan.chunks_per_rank": (1, 2, 4),
        "plan.microbatch_size": _images(job) if model.network else (1, 2, 4),
        "plan.zero_stage": (0, 1, 3),
        "plan.recompute": ("none", "selective", "full"),
    }
    if length >= LONG:
        ranges["plan.context_parallel"] = tuple(c for c in _powers(min(16, world)) if length % (2 * c) == 0)
    if len(ranges["plan.pipeline_parallel"]) > 1 and not model.encoder_layers:
        ranges[SPLIT] = (BALANCED, TIMED)
    if model.experts:
        ranges["plan.expert_parallel"] = tuple(
            e for e in _powers(min(model.experts, world, 64)) if model.experts % e == 0
        )
    return {field: values for field, values in ranges.items() if len(values) > 1}


def _images(job: Job) -> tuple[int, ...]:
    """Powers of two up to what a step has for each replica, and all of that."""
    most = max(1, job.workload.global_batch_size // job.cluster.world_size)
    return tuple(sorted({*_powers(most), most}))


def _powers(limit: int) -> Iterator[int]:
    value = 1
    while value <= limit:
        yield value
        value *= 2


def worlds(job: Job, most: int) -> tuple[int, ...]:
    """Return the numbers of GPUs up to `most` that a search may choose.

    Parts of a node by powers of two, then nodes by powers of two, last as many nodes as there may be: a rack of 18 has 16 of them, and 18.

    Raises:
        SpecError: fewer than one.
    """
    if most < 1:
        raise SpecError(f"--gpus at-most takes a number above zero, got {most}")
    node = job.cluster.gpus_per_node
    nodes = max(1, most // node)
    found = []
    for gpus in (*(g for g in _powers(node) if node % g == 0), *(node * n for n in (*_powers(nodes), nodes))):
        try:
            job.cluster.resized(gpus)
        except SimulatorError:
            continue
        if gpus <= most:
            found.append(gpus)
    return tuple(dict.fromkeys(found))
