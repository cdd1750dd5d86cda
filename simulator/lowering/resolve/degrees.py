"""How many replicas and microbatches a plan makes of a world and a batch; degrees that do not divide are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from simulator.errors import PlanError
from simulator.plan.plan import Plan
from simulator.workload.workload import Workload

__all__ = ["count_microbatches", "count_replicas", "nearest_divisor"]


def nearest_divisor(n: int, wanted: int) -> int:
    """Return the divisor of n that is nearest to a number.

    >>> nearest_divisor(96, 7)
    6
    """
    return min(_divisors(n), key=lambda d: (abs(d - wanted), d))


def _divisors(n: int) -> set[int]:
    return {d for i in range(1, math.isqrt(n) + 1) if n % i == 0 for d in (i, n // i)}


def count_replicas(plan: Plan, world_size: int, cluster_name: str, works: Callable[[Plan], bool] | None = None) -> int:
    """Return the data-parallel replicas.

    Args:
        works: whether another plan breaks no rule; the nearest degrees that a refusal names are tried with it.

    Raises:
        PlanError: degrees that do not multiply to the world size.
    """
    t, c, p = plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel
    inner = plan.model_parallel_size
    replicas = plan.data_parallel if plan.data_parallel is not None else max(1, world_size // inner)
    if inner * replicas != world_size:
        way = (
            f"Nearest: data_parallel = {world_size // inner}"
            if world_size % inner == 0
            else _nearest(plan, world_size, works)
        )
        raise PlanError(
            "tensor_parallel x context_parallel x pipeline_parallel x data_parallel must equal the world size, but "
            f"{t} x {c} x {p} x {replicas} = {inner * replicas} and {cluster_name} has {world_size} GPUs. {way}."
        )
    return replicas


def _nearest(plan: Plan, world_size: int, works: Callable[[Plan], bool] | None) -> str:
    """The degrees nearest to a plan's that divide the world, of those tried the first that works."""
    t, p = plan.tensor_parallel, plan.pipeline_parallel
    whole = {"context_parallel": 1} if plan.context_parallel > 1 else {}
    if works is not None:
        pairs = [(a, b) for a in _divisors(world_size) for b in _divisors(world_size // a)]
        pairs.sort(key=lambda pair: (abs(math.log(pair[0] / t)) + abs(math.log(pair[1] / p)), pair))
        for a, b in pairs[:_TRIES]:
            alone = {"sequence_parallel": False} if a == 1 and plan.sequence_parallel else {}
            changes = {**_degrees(a, b, world_size), **whole, **alone}
            if works(plan.model_copy(update=changes)):
                return f"Nearest: {_said(changes)}"
    best = nearest_divisor(world_size, t * p)
    tensor = math.gcd(best, t)
    way = _said({**_degrees(tensor, best // tensor, world_size), **whole})
    return f"Nearest: {way}" if works is None else f"What multiplies to it (something else must change, too): {way}"


_TRIES = 60
"""How many degrees are tried."""


def _degrees(tensor: int, pipeline: int, world_size: int) -> dict[str, int]:
    """Degrees that multiply to a world, by their fields."""
    replicas = world_size // (tensor * pipeline)
    return {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "data_parallel": replicas}


def _said(changes: Mapping[str, int]) -> str:
    return ", ".join(f"{field} = {str(value).lower()}" for field, value in changes.items())


def count_microbatches(workload: Workload, plan: Plan, replicas: int) -> int:
    """Return the microbatches of a step on each replica.

    Raises:
        PlanError: the global batch is no multiple of what the replicas take at once.
    """
    group = replicas * plan.microbatch_size
    if workload.global_batch_size % group:
        near = max(1, round(workload.global_batch_size / group)) * group
        raise PlanError(
            "global_batch_size must be a multiple of data_parallel x microbatch_size, but "
            f"{workload.global_batch_size} / ({replicas} x {plan.microbatch_size}) is no whole number. "
            f"Nearest: global_batch_size = {near}."
        )
    return workload.global_batch_size // group
