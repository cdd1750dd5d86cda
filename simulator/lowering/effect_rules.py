"""Rules of a plan as a whole: what would have no effect, or cannot go together, is refused, never ignored."""

from __future__ import annotations

from typing import Any

from simulator.errors import PlanError
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan

__all__ = ["check_effects"]


def check_effects(plan: Plan, framework: Framework, replicas: int, schedule: Any) -> None:
    """Refuse what would have no effect, and combinations that cannot be.

    Args:
        replicas: ranks that hold the same weights, context parallelism among them.

    Raises:
        PlanError: with the rule, the values and a way out.
    """

    def refuse(rule: str, values: str, way: str) -> None:
        raise PlanError(f"{rule}, but {values}. Way out: {way}.")

    if plan.zero_stage > (1 if schedule.replicas > 1 else 0) and replicas == 1:
        nearest = 1 if schedule.replicas > 1 else 0
        refuse(
            "zero_stage shards over the data-parallel replicas"
            + (", optimizer states over the copies of a schedule's lanes too" if nearest else ""),
            f"zero_stage = {plan.zero_stage} and data_parallel = 1",
            f"zero_stage = {nearest}, or data_parallel > 1",
        )
    if plan.overlap_parameters and schedule.replicas > 1:
        refuse(
            "updated weights are gathered beside the first forward that needs them, and copies of a chunk need them at different "
            "times on different ranks",
            f"overlap_parameters = true and schedule = {schedule.name!r}",
            "leave overlap_parameters out, or schedule = 'one_f_one_b'",
        )
    habit = framework.gradients_overlap and schedule.flush
    overlaps = habit if plan.overlap_gradients is None else plan.overlap_gradients
    copies = replicas * schedule.replicas
    if copies == 1 and (plan.overlap_gradients is not None or plan.bucket_size is not None):
        refuse(
            "gradients are reduced only between replicas",
            "data_parallel = 1",
            "leave out overlap_gradients, bucket_size",
        )
    if plan.overlap_gradients == "bubbles" and schedule.replicas == 1:
        refuse(
            "overlap_gradients = 'bubbles' is about copies of a chunk on several pipeline ranks",
            f"schedule = {schedule.name!r} keeps one",
            "overlap_gradients = true, or schedule = 'chimera'",
        )
    if plan.bucket_size is not None and schedule.replicas > 1 and plan.zero_stage != 2:
        refuse(
            "copies of a chunk on several pipeline ranks add its gradients whole, not by bucket",
            f"schedule = {schedule.name!r}",
            "leave bucket_size out",
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
