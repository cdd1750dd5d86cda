"""Rules of a plan as a whole: what would have no effect, or cannot go together, is refused, never ignored."""

from __future__ import annotations

from simulator.errors import refuse
from simulator.lowering.resolve.offload_rules import gradients_leave
from simulator.options.option import chosen
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.schedules.base import Schedule

__all__ = ["check_effects"]


def check_effects(plan: Plan, framework: Framework, replicas: int, schedule: Schedule) -> None:
    """Refuse what would have no effect, and combinations that cannot be.

    Args:
        replicas: ranks that hold the same weights, context parallelism among them.

    Raises:
        PlanError: with the rule, the values and a way out.
    """

    leave = gradients_leave(plan, schedule)
    hooks = plan.zero_stage == 3 and framework.fetch_time > 0  # fetch and release weights on a rank alone, too
    if plan.zero_stage > (1 if schedule.replicas > 1 else 0) and replicas == 1 and not (leave or hooks):
        nearest = 1 if schedule.replicas > 1 else 0
        leaves = ", or optimizer_offload = 1 (gradients leave as they are made)"
        refuse(
            "zero_stage shards over the data-parallel replicas"
            + (", optimizer states over the copies of a schedule's lanes too" if nearest else ""),
            f"zero_stage = {plan.zero_stage} and data_parallel = 1",
            f"zero_stage = {nearest}, or data_parallel > 1" + (leaves if plan.zero_stage == 2 and not nearest else ""),
        )
    if plan.overlap_parameters and schedule.replicas > 1:
        refuse(
            "updated weights are gathered beside the first forward that needs them, and copies of a chunk need them at different "
            "times on different ranks",
            f"overlap_parameters = true and schedule = {schedule.name!r}",
            "leave overlap_parameters out, or schedule = 'one_f_one_b'",
        )
    overlaps = chosen(plan, framework, "overlap_gradients", schedule.flush)
    copies = replicas * schedule.replicas
    if leave:
        plan.check_needs("replicas", "overlap_parameters", replicas=replicas)
    else:
        plan.check_needs("copies", "overlap_gradients", "bucket_size", "reduce_gradients", copies=copies)
    plan.check_needs("schedule.replicas", "overlap_gradients", "reduce_gradients", schedule=schedule)
    plan.check_needs("schedule.flush", "reduce_gradients", schedule=schedule)
    if plan.bucket_size is not None and schedule.replicas > 1 and plan.zero_stage != 2:
        refuse(
            "copies of a chunk on several pipeline ranks add its gradients whole, not by bucket",
            f"schedule = {schedule.name!r}",
            "leave bucket_size out",
        )
    if plan.bucket_size is not None and not leave and (not overlaps or plan.zero_stage == 3):
        refuse(
            "bucket_size matters only for overlapped gradients below ZeRO-3 (FSDP reduces unit by unit)",
            f"overlap_gradients = {str(overlaps).lower()}, zero_stage = {plan.zero_stage}",
            "leave bucket_size out",
        )
    plan.check_needs(
        "zero_stage",
        "overlap_gradients",
        "overlap_parameters",
        "reduce_gradients",
        "fsdp_prefetch",
        "reshard_after_forward",
        "optimizer_in_backward",
    )
    plan.check_needs("clip_gradients", "optimizer_in_backward")
    plan.check_needs("pipeline_parallel", "p2p", "registers")
    if plan.registers and plan.p2p == "blocking":
        refuse(
            "a message that blocks goes from a sender that waits to a receiver that takes it, through no buffer",
            f"p2p = 'blocking' and registers = {plan.registers}",
            "leave one of them out",
        )
