"""Over which ranks states are sharded, and over which the shards are repeated.

Without a word from the plan ZeRO shards over all ranks that hold the same weights.  With `shard_size` a group of so many of them
holds one copy of the states, and the groups are copies of one another (PyTorch's hybrid sharding; Megatron-LM's instances of the
distributed optimizer; InternEvo's ZeRO-1 groups; MiCS, arXiv 2205.00119).  With `secondary_shard_size` states are sharded over all,
and a second copy of the weights, kept inside the smaller group, serves the backward pass (ZeRO++ hpZ, arXiv 2306.10209).

Both cut the mesh axis "dp" in an inner part, which with context parallelism makes up the group, and an outer one, "replica":

    dp 16, shard_size 8                       dp 8, replica 2
    cp 2, dp 16, shard_size 8                 cp 2, dp 4, replica 4
    tp 2, ep 4, dp 4, shard_size 8            tp 2, ep 4, dp 2, replica 2
"""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import PlanError, refuse
from simulator.lowering.resolve.expert_rules import Axes, Groups
from simulator.plan.plan import Plan
from simulator.workload.workload import Workload

__all__ = ["COPIES", "check_shards", "check_units", "with_shards"]

COPIES = "replica"
"""The mesh axis between groups that each hold one copy of the sharded states."""


def with_shards(axes: Axes, groups: Groups, plan: Plan, replicas: int) -> tuple[Axes, Groups]:
    """Return the mesh axes and groups, with the axis "replica" where the plan shards inside smaller groups.

    Args:
        axes: mesh axes, experts' already among them.
        replicas: ranks that hold the same weights, context parallelism among them.

    Raises:
        PlanError: the group does not fit the axes.

    >>> axes, groups = with_shards((("tp", 2), ("dp", 16)), Groups(), Plan(zero_stage=1, shard_size=8), 16)
    >>> axes, groups.replicas, groups.shards
    ((('tp', 2), ('dp', 8), ('replica', 2)), ('dp', 'replica'), ('dp',))
    """
    name = "secondary_shard_size" if plan.secondary_shard_size else "shard_size"
    size = plan.shard_size or plan.secondary_shard_size
    if size is None or size == replicas:
        return axes, groups
    inner = dict(axes)["dp"]
    copies = replicas // size
    if replicas % size or inner % copies:
        held = replicas // inner
        fitting = [held * d for d in range(1, inner + 1) if inner % d == 0 and 1 < held * d]
        near = min(fitting, key=lambda n: (abs(n - size), n), default=None)
        raise PlanError(
            f"{name} counts ranks that hold the same weights, all of context_parallel and expert_parallel and a divisor of the "
            f"rest, but it is {size}, of {replicas} such ranks {held} belong to those and {inner} are the rest. "
            + (f"Nearest: {name} = {near}." if near else f"Way out: leave {name} out, or more replicas.")
        )
    out: list[tuple[str, int]] = []
    for axis, n in axes:
        out += [("dp", n // copies), (COPIES, copies)] if axis == "dp" else [(axis, n)]

    def longer(group: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(a for axis in group for a in ((axis, COPIES) if axis == "dp" else (axis,)))

    return tuple(out), replace(
        groups,
        replicas=longer(groups.replicas),
        expert_replicas=longer(groups.expert_replicas),
        copies=() if plan.secondary_shard_size else (COPIES,),
    )


def check_shards(workload: Workload, plan: Plan, replicas: int, lanes: int) -> None:
    """Refuse groups of shards that could have no effect or cannot be.

    Args:
        replicas: ranks that hold the same weights.
        lanes: copies of the weights that the schedule itself keeps.

    Raises:
        PlanError: with the rule, the values and a way out.
    """

    if lanes > 1 and (plan.shard_size or plan.secondary_shard_size or plan.quantized_gradients):
        refuse(
            "a schedule that keeps several copies of the weights adds gradients over all of them, not in groups",
            f"schedule = {plan.schedule!r} keeps {lanes}",
            "leave shard_size, secondary_shard_size and quantized_gradients out, or schedule = 'one_f_one_b'",
        )
    split = plan.expert_parallel * (plan.expert_tensor_parallel or plan.tensor_parallel)
    expert_replicas = plan.tensor_parallel * replicas // split if workload.model.experts else 0
    plan.check_needs("zero_stage", "shard_size")
    if plan.shard_size == 1:
        refuse("a group of shards has two ranks or more", "shard_size = 1 shards nothing", "zero_stage = 0")
    if plan.shard_size is not None and plan.shard_size < replicas and plan.zero_stage == 3 and expert_replicas:
        copies = replicas // plan.shard_size
        if expert_replicas <= copies:
            refuse(
                "ZeRO-3 shards experts too, inside the same groups",
                f"the experts have {expert_replicas} copies and shard_size = {plan.shard_size} makes {copies} groups",
                "a larger shard_size, a smaller expert_parallel, or zero_stage = 2",
            )
    if plan.secondary_shard_size is None:
        return
    values = f"secondary_shard_size = {plan.secondary_shard_size}"
    if plan.zero_stage != 3 or plan.reshard_after_forward is False:
        refuse(
            "a secondary shard serves the second gather of ZeRO-3, in the backward pass",
            f"{values}, zero_stage = {plan.zero_stage}, reshard_after_forward = {str(plan.reshard_after_forward).lower()}",
            "leave secondary_shard_size out, or zero_stage = 3 with reshard_after_forward = true",
        )
    if plan.shard_size is not None:
        refuse(
            "a secondary shard is kept beside shards over all replicas",
            f"{values} and shard_size = {plan.shard_size}",
            "one of the two",
        )
    if not 1 < plan.secondary_shard_size < replicas:
        refuse(
            "a secondary shard is held by a part of the ranks that hold the same weights",
            f"{values} of {replicas}",
            "leave secondary_shard_size out",
        )
    if expert_replicas and expert_replicas <= replicas // plan.secondary_shard_size:
        refuse(
            "experts need copies inside the secondary group",
            f"the experts have {expert_replicas} copies and {values} makes {replicas // plan.secondary_shard_size} groups",
            "a larger secondary_shard_size or a smaller expert_parallel",
        )


def check_units(workload: Workload, plan: Plan, microbatches: int) -> None:
    """Refuse settings of FSDP that could have no effect.

    Raises:
        PlanError: with the rule, the values and a way out.
    """

    units = ("fsdp_unit", "fsdp_gather", "fsdp_reduce", "quantized_weights", "quantized_gradients")
    plan.check_needs("zero_stage", *units)
    layers = workload.model.depth
    if isinstance(plan.fsdp_unit, int) and plan.fsdp_unit > layers:
        refuse(
            "a unit has at most all layers of the model",
            f"fsdp_unit = {plan.fsdp_unit} and it has {layers}",
            "fsdp_unit = 'chunk'",
        )
    plan.check_needs("microbatches", "fsdp_reduce", "reduce_gradients", microbatches=microbatches)
    if plan.fsdp_gather == "visit" and plan.reshard_after_forward is False:
        refuse(
            "weights that stay between forward and backward are gathered once per step",
            "fsdp_gather = 'visit' and reshard_after_forward = false",
            "one of the two",
        )
    if plan.quantized_weights and plan.fsdp_gather == "visit":
        refuse(
            "quantised weights are widened after every gather, for every microbatch",
            "quantized_weights = true and fsdp_gather = 'visit'",
            "fsdp_gather = 'microbatch'",
        )
    plan.check_needs("secondary_shard_size", "quantized_gradients")
    if plan.quantized_gradients and plan.fsdp_reduce in ("visit", "step"):
        refuse(
            "quantised gradients are added after every microbatch",
            f"quantized_gradients = true and fsdp_reduce = {plan.fsdp_reduce!r}",
            "leave fsdp_reduce out",
        )
