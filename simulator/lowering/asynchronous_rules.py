"""Rules of schedules without a flush: what cannot be combined with them, and after which actions weights change."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import PlanError
from simulator.plan.plan import Plan
from simulator.schedules.order import PipelineOrder

__all__ = ["check_asynchronous", "update_mask"]


def check_asynchronous(plan: Plan, schedule: Any) -> None:
    """Refuse what needs the moment at which all ranks have ended a step.

    Raises:
        PlanError: ZeRO-3, clipping by the global norm, or communication that ends at a flush.
    """

    def refuse(rule: str, values: str, way: str) -> None:
        raise PlanError(f"schedule {schedule.name!r} never flushes: {rule}, but {values}. Way out: {way}.")

    if plan.zero_stage == 3:
        refuse(
            "a rank keeps several versions of its weights, and FSDP gathers one, which the ranks that shard it must hold alike",
            "zero_stage = 3",
            "zero_stage = 2, or schedule = 'one_f_one_b'",
        )
    if plan.clip_gradients:
        refuse(
            "the norm of all gradients is known when every rank has ended the same backward, and ranks do not wait for that",
            "clip_gradients = true",
            "clip_gradients = false, or schedule = 'one_f_one_b'",
        )
    if plan.overlap_gradients:
        refuse(
            "reductions beside the backward pass are waited for at the flush, and here the update follows its backward at once",
            "overlap_gradients = true",
            "leave overlap_gradients out, or schedule = 'one_f_one_b'",
        )
    if plan.overlap_parameters:
        refuse(
            "updated weights are gathered beside the first forward of the next step, and here that one has run by then",
            "overlap_parameters = true",
            "leave overlap_parameters out, or schedule = 'one_f_one_b'",
        )


def update_mask(order: PipelineOrder, schedule: Any, microbatches: int) -> NDArray[np.bool_]:
    """Return [actions] whether the weights of the rank change right after it; empty for a schedule with a flush.

    Args:
        microbatches: of one step; `order` numbers those of all steps through.
    """
    if schedule.flush:
        return np.zeros(0, np.bool_)
    completes = (order.kind == 1) | (order.kind == 3)
    if schedule.updates_each_microbatch:
        return completes
    step = order.microbatch.astype(np.int64) // microbatches
    where = np.flatnonzero(completes)
    last = np.full((order.ranks, int(step.max()) + 1), -1, np.int64)
    last[order.rank[where], step[where]] = where  # of entries for one place the last stays
    mask = np.zeros(order.size, np.bool_)
    mask[last[last >= 0]] = True
    return mask
