"""Rules of steps that run into each other: what cannot be combined with them, and after which actions weights change.

Either the schedule never flushes (PipeDream), or every rank ends its steps on its own (optimizer post-validation).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.errors import refuse
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.schedules.base import Schedule
from simulator.schedules.order import PipelineOrder

__all__ = ["UNROLLED", "check_asynchronous", "post_validation", "update_mask"]

UNROLLED = 4
"""Steps in a program where every rank ends its own: the middle two are in the steady state."""


def check_asynchronous(plan: Plan, schedule: Schedule) -> None:
    """Refuse what needs the moment at which all ranks have ended a step.

    Raises:
        PlanError: ZeRO-3, clipping by the global norm, or communication that ends at a flush.
    """
    never = f"schedule {schedule.name!r} never flushes:"
    if plan.zero_stage == 3:
        refuse(
            f"{never} a rank keeps several versions of its weights, and FSDP gathers one, which the ranks that shard it must hold alike",
            "zero_stage = 3",
            "zero_stage = 2, or schedule = 'one_f_one_b'",
        )
    if plan.clip_gradients:
        refuse(
            f"{never} the norm of all gradients is known when every rank has ended the same backward, and ranks do not wait for that",
            "clip_gradients = true",
            "clip_gradients = false, or schedule = 'one_f_one_b'",
        )
    if plan.overlap_gradients:
        refuse(
            f"{never} reductions beside the backward pass are waited for at the flush, and here the update follows its backward at once",
            "overlap_gradients = true",
            "leave overlap_gradients out, or schedule = 'one_f_one_b'",
        )
    if plan.overlap_parameters:
        refuse(
            f"{never} updated weights are gathered beside the first forward of the next step, and here that one has run by then",
            "overlap_parameters = true",
            "leave overlap_parameters out, or schedule = 'one_f_one_b'",
        )
    for name, value in _at_the_end_of_a_step(plan):
        refuse(
            f"{never} an update stands between two actions of its rank, and this one is made for the end of a step",
            f"{name} = {value}",
            f"leave {name} out, or schedule = 'one_f_one_b'",
        )


def _at_the_end_of_a_step(plan: Plan) -> list[tuple[str, object]]:
    """Settings that are only known at the end of a step of all ranks."""
    fields = ("shard_size", "optimizer_offload")
    return [(name, getattr(plan, name)) for name in fields if getattr(plan, name)]


def post_validation(plan: Plan, framework: Framework, schedule: Schedule) -> bool:
    """Return whether ranks update without waiting for the global norm: as the plan says, else the framework's habit.

    Raises:
        PlanError: it is asked for where it would have no effect, or with what ends at a flush.
    """
    if not plan.post_validation:
        able = schedule.flush and schedule.replicas == 1 and plan.zero_stage < 3 and plan.pipeline_parallel > 1
        able = able and not _at_the_end_of_a_step(plan)
        habit = framework.post_validates and schedule.splits_backward and able
        return habit and plan.post_validation is None and not (plan.overlap_gradients or plan.overlap_parameters)
    plan.check_needs("pipeline_parallel", "post_validation")
    plan.check_needs("schedule.flush", "post_validation", schedule=schedule)
    if schedule.replicas > 1:
        refuse(
            "post_validation: ranks with copies of one chunk meet at the end of a step",
            f"schedule = {schedule.name!r}",
            "leave post_validation out, or schedule = 'zbv'",
        )
    if plan.zero_stage == 3:
        refuse(
            "post_validation: steps that run into each other are modelled up to ZeRO-2",
            "zero_stage = 3",
            "zero_stage = 2",
        )
    if plan.overlap_gradients or plan.overlap_parameters:
        refuse(
            "post_validation: reductions and gathers stand between a rank's last backward and its next forward",
            "overlap_gradients or overlap_parameters = true",
            "leave overlap_gradients and overlap_parameters out",
        )
    for name, value in _at_the_end_of_a_step(plan):
        refuse(
            "post_validation: an update stands between two actions of its rank",
            f"{name} = {value}",
            f"leave {name} out",
        )
    return True


def update_mask(order: PipelineOrder, schedule: Schedule, microbatches: int) -> NDArray[np.bool_]:
    """Return [actions] whether the weights of the rank change right after it; empty where `order` is one step.

    Args:
        microbatches: of one step; `order` numbers those of all steps through.
    """
    if schedule.flush and int((order.microbatch + order.count).max()) <= microbatches:
        return np.zeros(0, np.bool_)
    if schedule.updates_each_microbatch:
        return order.completes
    step = order.microbatch.astype(np.int64) // microbatches
    where = np.flatnonzero(order.completes)
    last = np.full((order.ranks, int(step.max()) + 1), -1, np.int64)
    last[order.rank[where], step[where]] = where  # of entries for one place the last stays
    mask = np.zeros(order.size, np.bool_)
    mask[last[last >= 0]] = True
    return mask
