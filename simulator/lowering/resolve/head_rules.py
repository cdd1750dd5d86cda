"""Tensor parallelism beyond the key/value heads: ranks whose queries share a head hold its keys' and values' weights whole.

Each of them makes the same keys and values, and has its own queries' term of their gradients, so the gradients of these weights are added
over the ranks that share a head (Megatron-LM's attention.py, where num_query_groups < tensor-parallel ranks; PaLM, arXiv 2204.02311,
section 2, has one head for all).  They are consecutive: the mesh axis "tp" keeps them, and "heads" becomes the outer one.

    tp 8, 2 key/value heads        tp 4 (ranks that share a head), heads 2
"""

from __future__ import annotations

import functools
from dataclasses import replace

from simulator.errors import PlanError, refuse
from simulator.lowering.resolve.degrees import nearest_divisor
from simulator.lowering.resolve.expert_rules import Groups, along_both, cut_axis
from simulator.plan.plan import Plan
from simulator.program.program import Axes
from simulator.workload.model import Model

__all__ = ["HEADS", "check_key_heads", "with_shared_heads"]

HEADS = "heads"
"""The mesh axis between ranks that have different key/value heads."""


def check_key_heads(model: Model, tensor: int) -> None:
    """Refuse ranks that would hold unequal numbers of key/value heads.

    Raises:
        PlanError: neither of both divides the other.
    """
    heads = model.kv_heads
    if heads % tensor and tensor % heads:
        near = min((nearest_divisor(heads, tensor), tensor // heads * heads), key=lambda d: (d < 1, abs(d - tensor)))
        raise PlanError(
            f"tensor_parallel must divide the model's kv_heads, or be a multiple of them, but {heads} / {tensor} is no whole number "
            f"(model {model.name!r}). Nearest: tensor_parallel = {near}."
        )


def with_shared_heads(axes: Axes, groups: Groups, plan: Plan, shared: int) -> tuple[Axes, Groups]:
    """Return the mesh axes and groups, "tp" cut in two where several ranks share a key/value head and not all of them do.

    Args:
        shared: ranks that share one.

    Raises:
        PlanError: experts are dealt out over a part of the axis.

    >>> axes, groups = with_shared_heads((("tp", 8), ("dp", 2)), Groups(), Plan(tensor_parallel=8), 4)
    >>> axes, groups.tensor, groups.heads
    ((('tp', 4), ('heads', 2), ('dp', 2)), ('tp', 'heads'), ('tp',))
    """
    if shared == 1:
        return axes, groups
    if shared == plan.tensor_parallel:
        return axes, replace(groups, heads=groups.tensor)
    if groups.tensor != ("tp",):
        refuse(
            "ranks that share key/value heads cannot also deal experts out over a part of their axis",
            f"expert_parallel = {plan.expert_parallel} cuts tensor_parallel = {plan.tensor_parallel}, of which {shared} share a head",
            "leave expert_tensor_parallel out",
        )
    longer = functools.partial(along_both, axis="tp", outer=HEADS)
    return cut_axis(axes, "tp", shared, HEADS), replace(
        groups,
        tensor=longer(groups.tensor),
        heads=("tp",),
        expert=longer(groups.expert),
        expert_replicas=longer(groups.expert_replicas),
    )
