"""Lowering: from workload and plan to a program, pass by pass.  No hardware and no seconds here.

Passes, in order: resolve (choices and rules), assign (layers to chunks), order (the schedule), expand (operators), instances,
connect (transfers), activation copies (to the host and back), shard (gathers), reduce (gradients), update (optimizer; asynchronous
where steps run into each other), copy order (of the host link), remember (memory), emit (the columns).
"""

from __future__ import annotations

import functools

import numpy as np

from simulator.errors import PlanError
from simulator.hardware.cluster import Cluster
from simulator.lowering.grouping import with_groups
from simulator.lowering.joined import joined
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.lowering.layers.outputs import on_one_rank
from simulator.lowering.layers.recompute import Recompute, layer_policies, reversal_of
from simulator.lowering.memory.activation_copies import add_activation_copies
from simulator.lowering.memory.copy_order import order_copies
from simulator.lowering.memory.remember import add_memory
from simulator.lowering.resolve import resolved_plan
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import Chunk, Chunks, assign_layers
from simulator.lowering.steps.asynchronous import add_updates
from simulator.lowering.steps.connect import add_transfers
from simulator.lowering.steps.emit import emit
from simulator.lowering.steps.instances import add_instances
from simulator.lowering.steps.reduce import add_reductions
from simulator.lowering.steps.shard import add_gathers
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import started
from simulator.lowering.steps.update import add_update
from simulator.plan.plan import Plan
from simulator.program.program import Program
from simulator.schedules.order import PipelineOrder
from simulator.schedules.reversal import Reversal
from simulator.workload.families import FAMILIES
from simulator.workload.model import Model
from simulator.workload.workload import Workload

__all__ = [
    "PASSES",
    "ResolvedPlan",
    "begin",
    "chunks_of",
    "longest_reversal",
    "lower",
    "lower_resolved",
    "resolve",
    "resolve_on",
]

PASSES = (
    add_instances,
    add_transfers,
    add_activation_copies,
    add_gathers,
    add_reductions,
    add_update,
    add_updates,
    order_copies,
    add_memory,
)
"""What runs between assignment and emission, in this order."""


def resolve(
    workload: Workload, plan: Plan, world_size: int, cluster_name: str = "the cluster", tries: bool = False
) -> ResolvedPlan:
    """Return the plan with every choice made: as `resolved_plan.resolve`, and what is left to memory is counted."""
    resolved = resolved_plan.resolve(workload, plan, world_size, cluster_name, tries)
    if resolved.stages:
        return resolved  # a rule refuses what is left to memory
    return with_groups(resolved, functools.partial(begin, workload))


def resolve_on(workload: Workload, plan: Plan, cluster: Cluster, tries: bool = False) -> ResolvedPlan:
    """Return the plan with every choice made, for the GPUs of a cluster, which a refusal names."""
    return resolve(workload, plan, cluster.world_size, f"cluster {cluster.name!r}", tries)


def lower(workload: Workload, plan: Plan, world_size: int | None = None) -> Program:
    """Return the program of one training step; of several that run into each other, for a schedule without a flush.

    Args:
        world_size: GPUs of the job; by default what the plan's degrees multiply to.

    Raises:
        PlanError: the plan cannot be.
    """
    size = world_size or plan.model_parallel_size * (plan.data_parallel or 1)
    return lower_resolved(workload, resolve(workload, plan, size))


def lower_resolved(workload: Workload, resolved: ResolvedPlan) -> Program:
    """Return the program of a resolved plan."""
    if resolved.stages:
        return joined(resolved.stages, [lower_resolved(workload, stage) for stage in resolved.stages])
    state = begin(workload, resolved)
    for step in PASSES:
        step(state)
    return emit(state, f"{workload.model.name} {resolved.schedule.name}")


def begin(workload: Workload, resolved: ResolvedPlan) -> State:
    """Return what the passes begin with: the order, what each chunk holds, and the cost of every kind of layer; not a row yet."""
    structure = started(resolved.schedule, resolved.shape, resolved.steps)
    lengths = _slice_lengths(structure.order, workload.sequence_length) if resolved.schedule.slices else {}

    def scaled(count: int, part: int, parts: int, weight: float) -> dict[str, LayerCost]:
        if resolved.schedule.slices:
            return layer_costs(workload, resolved, length=lengths[part], context=sum(lengths[j] for j in range(part)))
        sequences = resolved.microbatch_size * count // parts
        if resolved.microbatch_size * count % parts:
            raise PlanError(
                f"schedule {resolved.schedule.name!r} splits microbatches in {parts}, but microbatch_size = "
                f"{resolved.microbatch_size}. Nearest: microbatch_size = {parts}."
            )
        return layer_costs(workload, resolved, sequences=sequences)

    costs, recomputes = layer_costs(workload, resolved), resolved.recomputes
    if resolved.exchange.one_process and resolved.replicas > 1:
        facts = resolved.replicas, resolved.replica_axes
        costs = {kind: on_one_rank(cost, *facts) for kind, cost in costs.items()}
    work = _work(workload.model, resolved, costs)
    chunks = chunks_of(workload.model, recomputes, resolved.layer_split, structure.placement.chunks, work)
    return State(
        scaled_costs=scaled,
        workload=workload,
        resolved=resolved,
        chunks=chunks,
        costs=costs,
        structure=structure,
        boundaries=_boundaries(workload.model, chunks, costs),
    )


def longest_reversal(workload: Workload, resolved: ResolvedPlan) -> Reversal:
    """Return in what turns the chunk with most layers runs backward."""
    state = begin(workload, resolved)
    chunk = max(state.chunks, key=lambda chunk: chunk.layers)
    return reversal_of(chunk, resolved.recomputes, dict(_work(workload.model, resolved, state.costs)))


def _work(
    model: Model, resolved: ResolvedPlan, costs: dict[str, LayerCost]
) -> tuple[tuple[str, tuple[float, float]], ...]:
    """FLOP of the forward and bytes of the input of every kind of layer, where an order of fewest forwards asks for them."""
    kinds = dict.fromkeys(model.layer_kinds) if resolved.recomputes.method == "revolve" else ()
    return tuple([(kind, (float(costs[kind].forward.flops.sum()), costs[kind].input_bytes)) for kind in kinds])


def _boundaries(model: Model, chunks: tuple[Chunk, ...], costs: dict[str, LayerCost]) -> tuple[int, ...]:
    """See `State.boundaries`."""
    if FAMILIES.get(model.architecture).like_boundaries:
        return ()
    sizes = [costs[chunk.kinds[0]].input_bytes for chunk in chunks]
    return tuple([sizes.index(size) for size in sizes])


@functools.lru_cache(maxsize=256)
def chunks_of(
    model: Model,
    recomputes: Recompute,
    split: tuple[int, ...] | None,
    count: int,
    work: tuple[tuple[str, tuple[float, float]], ...] = (),
) -> tuple[Chunk, ...]:
    """What each chunk holds, and what its layers recompute; `work`: as `layer_policies` takes it."""
    chunks = assign_layers(model.depth, count, split, model.layer_kinds, model.mtp_layers)
    return _first_of_equals(Chunks(layer_policies(chunk, recomputes, dict(work)) for chunk in chunks))


@functools.lru_cache(maxsize=1024)
def _first_of_equals(chunks: Chunks) -> Chunks:
    """The same tuple for the same chunks, so that they need not be compared where they are a key."""
    return chunks


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
