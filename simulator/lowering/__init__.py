"""Lowering: from workload and plan to a program, pass by pass.  No hardware and no seconds here.

Passes, in order: settle (choices and rules), assign (layers to chunks), order (the schedule), expand (operators), instances,
connect (transfers), activation copies (to the host and back), shard (gathers), reduce (gradients), update (optimizer; asynchronous
where steps run into each other), remember (memory), emit (the columns).
"""

from __future__ import annotations

import functools

import numpy as np

from simulator.errors import PlanError
from simulator.lowering.activation_copies import add_activation_copies
from simulator.lowering.assign import Chunk, assign_layers
from simulator.lowering.asynchronous import add_updates
from simulator.lowering.connect import add_transfers
from simulator.lowering.emit import emit
from simulator.lowering.expand import LayerCost, layer_costs
from simulator.lowering.instances import add_instances
from simulator.lowering.recompute import Recompute, layer_policies
from simulator.lowering.reduce import add_reductions
from simulator.lowering.remember import add_memory
from simulator.lowering.settled import Settled, settle
from simulator.lowering.shard import add_gathers
from simulator.lowering.state import State
from simulator.lowering.structure import started
from simulator.lowering.update import add_update
from simulator.plan.plan import Plan
from simulator.program.program import Program
from simulator.schedules.order import PipelineOrder
from simulator.workload.model import Model
from simulator.workload.workload import Workload

__all__ = ["PASSES", "Settled", "chunks_of", "lower", "lower_settled", "settle"]

PASSES = (
    add_instances,
    add_transfers,
    add_activation_copies,
    add_gathers,
    add_reductions,
    add_update,
    add_updates,
    add_memory,
)
"""What runs between assignment and emission, in this order."""


def lower(workload: Workload, plan: Plan, world_size: int | None = None) -> Program:
    """Return the program of one training step; of several that run into each other, for a schedule without a flush.

    Args:
        world_size: GPUs of the job; by default what the plan's degrees multiply to.

    Raises:
        PlanError: the plan cannot be.
    """
    size = world_size or plan.model_parallel_size * (plan.data_parallel or 1)
    return lower_settled(workload, settle(workload, plan, size))


def lower_settled(workload: Workload, settled: Settled) -> Program:
    """Return the program of a settled plan."""
    structure = started(settled.schedule, settled.shape, settled.steps)
    lengths = _slice_lengths(structure.order, workload.sequence_length) if settled.schedule.slices else {}

    def scaled(count: int, part: int, parts: int, weight: float) -> dict[str, LayerCost]:
        if settled.schedule.slices:
            return layer_costs(workload, settled, length=lengths[part], context=sum(lengths[j] for j in range(part)))
        sequences = settled.microbatch_size * count // parts
        if settled.microbatch_size * count % parts:
            raise PlanError(
                f"schedule {settled.schedule.name!r} splits microbatches in {parts}, but microbatch_size = "
                f"{settled.microbatch_size}. Nearest: microbatch_size = {parts}."
            )
        return layer_costs(workload, settled, sequences=sequences)

    state = State(
        scaled_costs=scaled,
        workload=workload,
        settled=settled,
        chunks=chunks_of(workload.model, settled.recomputes, settled.layer_split, structure.placement.chunks),
        costs=layer_costs(workload, settled),
        structure=structure,
    )
    for step in PASSES:
        step(state)
    return emit(state, f"{workload.model.name} {settled.schedule.name}")


@functools.lru_cache(maxsize=256)
def chunks_of(model: Model, recomputes: Recompute, split: tuple[int, ...] | None, count: int) -> tuple[Chunk, ...]:
    """What each chunk holds, and what its layers recompute."""
    chunks = assign_layers(model.depth, count, split, model.layer_kinds, model.mtp_layers)
    return tuple(layer_policies(chunk, recomputes) for chunk in chunks)


def _slice_lengths(order: PipelineOrder, tokens: int) -> dict[int, int]:
    """Tokens of each sequence slice; whole tokens, so that they sum to the sequence."""
    forward = np.flatnonzero((order.kind == 0) & (order.chunk == 0) & (order.microbatch == 0))
    parts = {int(order.part[i]): float(order.weight[i]) for i in forward}
    ends, total = [0], 0.0
    for part in sorted(parts):
        total += parts[part]
        ends.append(round(total * tokens))
    lengths = {part: b - a for part, a, b in zip(sorted(parts), ends, ends[1:], strict=False)}
    if not lengths or min(lengths.values()) < 1:
        raise PlanError(
            f"a sequence of {tokens} tokens cannot be cut in {len(parts)} slices of a token or more. Way out: fewer slices "
            "(chunks_per_rank)."
        )
    return lengths
