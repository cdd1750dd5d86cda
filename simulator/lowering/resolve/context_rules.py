"""Context parallelism in two levels: heads dealt out inside a group, keys and values in a ring between the groups.

The mesh axis "cp" keeps the inner part, consecutive ranks, and "ring" becomes the outer one (USP, arXiv 2405.07719; Megatron-LM's
--cp-comm-type a2a+p2p):

    cp 8, context_parallel_inner 4        cp 4 (all_to_all of heads), ring 2 (keys and values)
"""

from __future__ import annotations

import functools
from dataclasses import replace

from simulator.errors import PlanError, refuse
from simulator.lowering.resolve.expert_rules import Groups, along_both, cut_axis
from simulator.partition.strategies.context import RING_SELF_ATTENTION
from simulator.plan.plan import Plan
from simulator.program.program import Axes
from simulator.workload.model import Model

__all__ = ["RING", "check_context", "with_ring"]

RING = "ring"
"""The mesh axis between groups that deal heads out."""


def with_ring(axes: Axes, groups: Groups, plan: Plan) -> tuple[Axes, Groups]:
    """Return the mesh axes and groups, "cp" cut in two where the plan says so.

    Raises:
        PlanError: experts are dealt out over a part of the axis.

    >>> axes, groups = with_ring(
    ...     (("cp", 8), ("dp", 2)), Groups(replicas=("cp", "dp")),
    ...     Plan(context_parallel=8, context_parallel_kind="hybrid", context_parallel_inner=4),
    ... )
    >>> axes, groups.context, groups.ring, groups.replicas
    ((('cp', 4), ('ring', 2), ('dp', 2)), ('cp',), ('ring',), ('cp', 'ring', 'dp'))
    """
    if plan.context_parallel_kind != "hybrid" or plan.context_parallel_inner is None:
        return axes, groups
    inner = plan.context_parallel_inner
    if groups.context != ("cp",):
        raise PlanError(
            "ranks that deal heads out cannot also deal experts out over a part of their axis, but expert_parallel = "
            f"{plan.expert_parallel} cuts context_parallel = {plan.context_parallel}. Way out: context_parallel_kind = 'ring'."
        )
    longer = functools.partial(along_both, axis="cp", outer=RING)
    return cut_axis(axes, "cp", inner, RING), replace(
        groups,
        ring=(RING,),
        expert=longer(groups.expert),
        replicas=longer(groups.replicas),
        expert_replicas=longer(groups.expert_replicas),
    )


def check_context(model: Model, plan: Plan, attention: str) -> None:
    """Refuse an inner part of context parallelism that could have no effect or cannot be, and a ring that keeps scores where the
    kernel makes none.

    Args:
        attention: the kernel; "unfused" keeps its scores in memory.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    unfused = attention == "unfused"
    if plan.context_parallel_kind == RING_SELF_ATTENTION and not unfused:
        refuse(
            "ring_self_attention keeps all scores of a rank's queries in memory",
            f"attention = {attention!r} makes none",
            "attention = 'unfused', or context_parallel_kind = 'ring'",
        )
    inner, hybrid = plan.context_parallel_inner, plan.context_parallel_kind == "hybrid"
    if hybrid != (inner is not None):
        refuse(
            "context_parallel_kind 'hybrid' and context_parallel_inner belong together",
            f"context_parallel_kind = {plan.context_parallel_kind!r} and context_parallel_inner = {inner}",
            "both or neither",
        )
    if inner is None:
        return
    if not 1 < inner < plan.context_parallel or plan.context_parallel % inner:
        refuse(
            "context_parallel_inner is a part of context_parallel",
            f"it is {inner} of {plan.context_parallel}",
            "a divisor of context_parallel, neither 1 nor all of it",
        )
    if model.kv_heads % (plan.tensor_parallel * inner):
        refuse(
            "heads are dealt out, so tensor_parallel x context_parallel_inner must divide the model's kv_heads",
            f"{model.kv_heads} / ({plan.tensor_parallel} x {inner}) is no whole number",
            "a smaller context_parallel_inner, or context_parallel_kind = 'ring'",
        )
    if unfused:
        refuse("dealing heads out needs a fused attention kernel", "attention = 'unfused'", "attention = 'flash2'")
