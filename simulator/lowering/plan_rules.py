"""Settings of a plan that depend on one another: refused where one of them could have no effect."""

from __future__ import annotations

from typing import Any

from simulator.errors import PlanError
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan

__all__ = ["check_effects", "check_reduce_dtype"]


def check_effects(plan: Plan, framework: Framework, replicas: int, schedule: Any) -> None:
    """Refuse what would have no effect, and combinations that cannot be.

    Args:
        replicas: ranks that hold the same weights.
        schedule: the plan's.

    Raises:
        PlanError: with the rule, the values and a way out.
    """

    def refuse(rule: str, values: str, way: str) -> None:
        raise PlanError(f"{rule}, but {values}. Way out: {way}.")

    if plan.zero_stage and replicas == 1:
        refuse(
            "zero_stage shards over the data-parallel replicas",
            f"zero_stage = {plan.zero_stage} and data_parallel = 1",
            "zero_stage = 0, or data_parallel > 1",
        )
    if plan.zero_stage and schedule.replicas > 1:
        refuse(
            "states cannot be sharded over replicas that hold several model copies on a rank",
            f"zero_stage = {plan.zero_stage} and schedule = {schedule.name!r}",
            "zero_stage = 0, or schedule = 'one_f_one_b'",
        )
    overlaps = framework.gradients_overlap if plan.overlap_gradients is None else plan.overlap_gradients
    if replicas == 1 and (plan.overlap_gradients is not None or plan.bucket_size is not None):
        refuse(
            "gradients are reduced only between replicas",
            "data_parallel = 1",
            "leave out overlap_gradients, bucket_size",
        )
    if plan.bucket_size is not None and (not overlaps or plan.zero_stage == 3):
        refuse(
            "bucket_size matters only for overlapped gradients below ZeRO-3 (FSDP reduces unit by unit)",
            f"overlap_gradients = {str(overlaps).lower()}, zero_stage = {plan.zero_stage}",
            "leave bucket_size out",
        )
    if plan.overlap_gradients is not None and plan.zero_stage == 3:
        refuse("FSDP always reduces beside the backward pass", "zero_stage = 3", "leave overlap_gradients out")
    if plan.overlap_parameters is not None and plan.zero_stage not in (1, 2):
        refuse(
            "overlap_parameters gathers the weights of ZeRO-1 and ZeRO-2",
            f"zero_stage = {plan.zero_stage}",
            "leave overlap_parameters out",
        )
    if plan.zero_stage != 3 and (plan.fsdp_prefetch is not None or plan.reshard_after_forward is not None):
        refuse(
            "fsdp_prefetch and reshard_after_forward belong to zero_stage 3",
            f"zero_stage = {plan.zero_stage}",
            "leave them out, or zero_stage = 3",
        )
    if plan.pipeline_parallel == 1 and plan.p2p is not None:
        refuse("p2p is about messages between pipeline ranks", "pipeline_parallel = 1", "leave p2p out")


def check_reduce_dtype(plan: Plan, gradient: str, replicas: int) -> None:
    """Refuse a number format of reductions that could have no effect.

    Args:
        gradient: that of the buffers.
        replicas: ranks that hold the same weights.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    wanted = plan.gradient_reduce_dtype
    if wanted is None:
        return
    if replicas == 1:
        why = "gradients are added only between replicas, but data_parallel = 1"
    elif wanted == gradient:
        why = f"gradients are added in the format of their buffers anyway, but both are {gradient}"
    elif plan.quantized_gradients:
        why = "quantised gradients travel as 4-bit integers, but quantized_gradients = true"
    else:
        return
    raise PlanError(f"{why} (gradient_reduce_dtype = {wanted!r}). Way out: leave gradient_reduce_dtype out.")
