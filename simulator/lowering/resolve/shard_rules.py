"""Over which ranks states are sharded, and over which the shards are repeated.

Without a word from the plan ZeRO shards over all ranks that hold the same weights.  With `shard_size` a group of so many of them
holds one copy of the states, and the groups are copies of one another (PyTorch's hybrid sharding; Megatron-LM's instances of the
distributed optimizer; InternEvo's ZeRO-1 groups; MiCS, arXiv 2205.00119).  With `secondary_shard_size` states are sharded over all,
and a second copy of the weights, kept inside the smaller group, serves the backward pass (ZeRO++ hpZ, arXiv 2306.10209).

Both cut the mesh axis "dp" in an inner part, which with context parallelism makes up the group, and an outer one, "replica":

    dp 16, shard_size 8                       dp 8, replica 2
    cp 2, dp 16, shard_size 8                 cp 2, dp 4, replica 4
    tp 2, ep 4, dp 4, shard_size 8            tp 2, ep 4, dp 2, replica 2

So a group holds whole groups of experts: weights that are no experts are sharded over ranks of expert parallelism first, then over
"dp"; experts over "dp" alone (torchtitan: dp_shard is dp_shard_mod_ep x dp_shard_in_ep; MaxText's rules for 'embed' and 'embed_moe';
Megatron-LM's expert data parallelism).  With `shard_across_experts` a group takes one rank of each group of experts, and each of these
has a copy of what is no expert (NVIDIA BioNeMo's recipe mixtral_native_te: a mesh of dp x ep, whole layers wrapped over dp, gradients
of what is no expert added over ep besides):

    ep 4, dp 2, shard_across_experts          dp 2; copies over ep
    ep 4, dp 8, the same, shard_size 4        dp 4, replica 2; copies over ep and replica, of experts over replica
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from simulator.errors import PlanError, refuse
from simulator.lowering.resolve.expert_rules import Groups, along_both, cut_axis
from simulator.plan.plan import Plan
from simulator.program.program import Axes
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
    >>> from simulator.lowering.resolve.expert_rules import with_experts
    >>> axes, groups = with_experts((("dp", 8),), Plan(expert_parallel=4), True)
    >>> axes, groups = with_shards(axes, groups, Plan(zero_stage=3, expert_parallel=4, shard_across_experts=True), 8)
    >>> axes, groups.shards, groups.copies, groups.expert_shards, groups.expert_copies
    ((('ep', 4), ('dp', 2)), ('dp',), ('ep',), ('dp',), ())
    """
    name = "secondary_shard_size" if plan.secondary_shard_size else "shard_size"
    size, sizes = plan.shard_size or plan.secondary_shard_size, dict(axes)
    apart = tuple(axis for axis in groups.replicas if axis not in groups.expert_replicas)
    if plan.shard_across_experts:
        replicas //= math.prod(sizes[axis] for axis in apart)
        groups = replace(groups, copies=apart)
    if size is None or size == replicas:
        return axes, groups
    inner = sizes["dp"]
    copies = replicas // size
    if replicas % size or inner % copies:
        held = replicas // inner
        fitting = [held * d for d in range(1, inner + 1) if inner % d == 0 and 1 < held * d]
        near = min(fitting, key=lambda n: (abs(n - size), n), default=None)
        across = plan.expert_parallel > 1 and inner % size == 0 and not plan.shard_across_experts and plan.shard_size
        ways = [f"{name} = {near}"] * (near is not None) + ["shard_across_experts = true"] * bool(across)
        raise PlanError(
            f"{name} counts ranks that hold the same weights, "
            f"{'one of each group of experts, ' if plan.shard_across_experts else ''}"
            f"all of context_parallel{'' if plan.shard_across_experts else ' and expert_parallel'} and a divisor of the "
            f"rest, but it is {size}, of {replicas} such ranks {held} belong to those and {inner} are the rest. "
            + (f"Nearest: {', or '.join(ways)}." if ways else f"Way out: leave {name} out, or more replicas.")
        )
    longer = functools.partial(along_both, axis="dp", outer=COPIES)
    return cut_axis(axes, "dp", inner // copies, COPIES), replace(
        groups,
        replicas=longer(groups.replicas),
        expert_replicas=longer(groups.expert_replicas),
        copies=() if plan.secondary_shard_size else (*groups.copies, COPIES),
        expert_copies=() if plan.secondary_shard_size else (COPIES,),
    )


def check_shards(workload: Workload, plan: Plan, replicas: int, lanes: int) -> None:
    """Refuse groups of shards that could have no effect or cannot be.

    Args:
        replicas: ranks that hold the same weights.
        lanes: copies of the weights that the schedule itself keeps.

    Raises:
        PlanError: with the rule, the values and a way out.
    """

    groups = plan.shard_size or plan.secondary_shard_size or plan.quantized_gradients or plan.shard_across_experts
    if lanes > 1 and groups:
        refuse(
            "a schedule that keeps several copies of the weights adds gradients over all of them, not in groups",
            f"schedule = {plan.schedule!r} keeps {lanes}",
            "leave shard_size, secondary_shard_size, shard_across_experts and quantized_gradients out, or "
            "schedule = 'one_f_one_b'",
        )
    split = plan.expert_parallel * (plan.expert_tensor_parallel or plan.tensor_parallel)
    expert_replicas = plan.tensor_parallel * replicas // split if workload.model.experts else 0
    plan.check_needs("zero_stage", "shard_size", "shard_across_experts")
    plan.check_needs("expert_parallel", "shard_across_experts")
    if plan.shard_size == 1:
        refuse("a group of shards has two ranks or more", "shard_size = 1 shards nothing", "zero_stage = 0")
    if plan.shard_across_experts:
        _check_across(plan, expert_replicas)
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


def _check_across(plan: Plan, left: int) -> None:
    """Refuse shards across groups of experts beside what has groups of its own.

    Args:
        left: ranks of different groups that hold the same experts.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    if left == 1:
        refuse(
            "shards across groups of experts lie on one rank of each",
            f"expert_parallel = {plan.expert_parallel} makes one group",
            "a smaller expert_parallel, or leave shard_across_experts out",
        )
    if plan.secondary_shard_size is not None:
        refuse(
            "a secondary shard is kept beside shards over all replicas",
            f"secondary_shard_size = {plan.secondary_shard_size} and shard_across_experts = true",
            "one of the two",
        )
    if plan.gradient_exchange not in (None, "all_reduce"):
        refuse(
            "what replicas exchange goes between whole copies of the states, and groups of experts have no experts in common",
            f"gradient_exchange = {plan.gradient_exchange!r} and shard_across_experts = true",
            "one of the two",
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
