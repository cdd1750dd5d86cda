"""Lowering: from workload and plan to a program, pass by pass.  No hardware and no seconds here.

Passes, in order: settle (choices and rules), assign (layers to chunks), order (the schedule), expand (operators), instances,
connect (transfers), shard (gathers), reduce (gradients), update (optimizer), remember (memory), emit (the columns).
"""

from __future__ import annotations

import functools
from typing import Any

from simulator.lowering.assign import assign_layers
from simulator.lowering.connect import add_transfers
from simulator.lowering.emit import emit
from simulator.lowering.expand import layer_costs
from simulator.lowering.instances import add_instances
from simulator.lowering.pattern import find_pattern
from simulator.lowering.reduce import add_reductions
from simulator.lowering.remember import add_memory
from simulator.lowering.settled import Settled, settle
from simulator.lowering.shard import add_gathers
from simulator.lowering.state import State
from simulator.lowering.update import add_update
from simulator.plan.plan import Plan
from simulator.program.program import Program
from simulator.schedules.base import Shape
from simulator.workload.workload import Workload

__all__ = ["PASSES", "Settled", "lower", "lower_settled", "settle"]

PASSES = (add_instances, add_transfers, add_gathers, add_reductions, add_update, add_memory)
"""What runs between assignment and emission, in this order."""


@functools.lru_cache(maxsize=64)
def _ordered(schedule: Any, shape: Shape) -> Any:
    """Placement, order and messages of a schedule: they do not depend on the model, so plans share them."""
    schedule.check(shape)
    placement = schedule.placement(shape)
    order = schedule.order(shape, placement)
    return placement, order, find_pattern(order, placement)


def lower(workload: Workload, plan: Plan, world_size: int | None = None) -> Program:
    """Return the program of one training step.

    Args:
        world_size: GPUs of the job; by default what the plan's degrees multiply to.

    Raises:
        PlanError: the plan cannot be.
    """
    size = world_size or plan.model_parallel_size * (plan.data_parallel or 1)
    return lower_settled(workload, settle(workload, plan, size))


def lower_settled(workload: Workload, settled: Settled) -> Program:
    """Return the program of a settled plan."""
    placement, order, pattern = _ordered(settled.schedule, settled.shape)
    chunks = settled.pipeline_parallel * settled.chunks_per_rank
    state = State(
        workload=workload,
        settled=settled,
        chunks=assign_layers(workload.model.layers, chunks, settled.layer_split),
        costs=layer_costs(workload, settled),
        placement=placement,
        order=order,
        pattern=pattern,
    )
    for step in PASSES:
        step(state)
    return emit(state, f"{workload.model.name} {settled.schedule.name}")
