"""A schedule alone, in abstract time: the same passes as a real step, with one layer per chunk and given seconds.

Times are those of one microbatch on one rank's whole share of one lane; an action of a chunk takes 1/v of it (design 5b L).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.errors import PlanError
from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import Chunk
from simulator.lowering.steps.connect import add_transfers
from simulator.lowering.steps.emit import emit
from simulator.lowering.steps.instances import add_instances
from simulator.lowering.steps.pattern import Pattern
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import begun
from simulator.plan.framework import load_framework
from simulator.program.operator_table import operator_table
from simulator.program.prices import Prices
from simulator.program.program import COMPUTE, Program, Tensor
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement
from simulator.workload.operator import KernelStyle
from simulator.workload.precision import precision_named

__all__ = ["abstract_program", "items_by_rank"]


def abstract_program(
    placement: Placement,
    order: PipelineOrder,
    pattern: Pattern,
    *,
    forward: ArrayLike,
    input_grad: ArrayLike,
    weight_grad: ArrayLike,
    transfer: float = 0.0,
    freed_at_input_grad: bool = False,
) -> tuple[Program, Prices]:
    """Return program and prices of a pipeline order; `pattern` of it.

    Args:
        forward, input_grad, weight_grad: time of one microbatch on one rank's share of one lane; one number, or one per rank.
        transfer: latency of a message between ranks; it holds nothing.
        freed_at_input_grad: activations are given back at the end of I instead of W.

    Raises:
        PlanError: a time is negative or not finite, or their number is not that of the ranks.
    """
    given = {"forward": forward, "input_grad": input_grad, "weight_grad": weight_grad, "transfer": transfer}
    times = {name: np.asarray(value, np.float64) for name, value in given.items()}
    for name, value in times.items():
        if value.shape not in ((), (placement.ranks,)):
            raise PlanError(
                f"the {name} time of a schedule is one number or one per rank, but there are {value.size} for {placement.ranks} ranks"
            )
        if not ((value >= 0) & (value < np.inf)).all():
            raise PlanError(f"the {name} time of a schedule must be a finite number >= 0, but it is {value}")
    f, i, w = (np.broadcast_to(times[name], placement.ranks) for name in ("forward", "input_grad", "weight_grad"))
    share = placement.ranks / placement.chunks
    state = State(
        workload=None,  # type: ignore[arg-type]  # no pass that runs here asks for it
        resolved=_resolved(placement),
        chunks=(Chunk(1),) * placement.chunks,
        costs={"layer": _cost(share)},
        structure=begun(placement, order, pattern, placement.microbatches),
        scaled_costs=lambda count, part, parts, weight: {"layer": _cost(share * weight)},
    )
    add_instances(state)
    add_transfers(state)
    kind = order.kind
    last = 2 if freed_at_input_grad else 3
    for scale, costs in enumerate(state.scales):
        held, mine = state.effect(costs["layer"].saved), state.structure.scale == scale
        state.touch("start", state.first_row[mine & (kind == 0)], held)
        state.touch("end", state.last_row[mine & ((kind == 1) | (kind == last))], held)
    state.resident = [[] for _ in range(state.ranks)]
    program = emit(state, "schedule")
    if any(value.ndim for value in times.values()):
        program = items_by_rank(program)
    return program, _prices(program, state, share, np.stack([f, i + w, i, w]), transfer)


def items_by_rank(program: Program) -> Program:
    """Return the same program with items that ranks do not share, so that each can have times of its own."""
    compute = program.kind == COMPUTE
    code = program.item.astype(np.int64) * program.ranks + np.where(compute, program.rank, 0)
    own, item = np.unique(code, return_inverse=True)
    items = tuple(program.items[n // program.ranks] for n in own)
    return replace(program, items=items, item=item.astype(program.item.dtype))


def _cost(held: float) -> LayerCost:
    nothing = operator_table("nothing", {})
    share = Tensor(name="activations", category="activations", bytes=held)
    return LayerCost(
        tables=dict.fromkeys(("forward", "backward", "input_gradient", "weight_gradient"), lambda: nothing),
        saved=(share,),
        forward_mark=(),
        backward_mark=(),
        parameters=0.0,
        input_bytes=1.0,
    )


def _resolved(placement: Placement) -> ResolvedPlan:
    return ResolvedPlan(
        tensor_parallel=1,
        context_parallel=1,
        context_parallel_kind="ring",
        pipeline_parallel=placement.ranks,
        data_parallel=1,
        sequence_parallel=False,
        chunks_per_rank=placement.chunks // placement.ranks,
        microbatch_size=1,
        microbatches=placement.microbatches,
        schedule=None,  # type: ignore[arg-type]  # nor for this
        zero_stage=0,
        overlap_gradients=False,
        overlap_parameters=False,
        overlap_tensor_parallel=False,
        bucket_size=0.0,
        gradient_bytes=0,
        gradient_dtype="bf16",
        p2p="latency",
        layer_split=None,
        fsdp_prefetch=0,
        reshard_after_forward=False,
        clip_gradients=False,
        optimizer_in_backward=False,
        axes=(("pp", placement.ranks),),
        style=KernelStyle(),
        precision=precision_named("bf16"),
        framework=load_framework("megatron_core"),
        vocabulary=0,
    )


def _prices(program: Program, state: State, share: float, times: NDArray[np.float64], transfer: float) -> Prices:
    """Seconds of each item: those of its action [kinds, ranks], by how much of a microbatch it covers; a fused pair takes the sum."""
    occupancy, latency = np.zeros(len(program.items)), np.zeros(len(program.items))
    order = state.order
    each = times[order.kind, order.rank] * order.weight * share
    pair = order.pair.astype(np.int64)
    alone = pair < np.arange(len(pair))
    total = each + np.where(pair >= 0, each[pair], 0.0)
    runs = (pair < 0) | ~alone
    occupancy[program.item[state.first_row[runs]]] = total[runs]
    links = program.kind != COMPUTE
    latency[program.item[links]] = transfer
    return Prices.plain(occupancy, latency)
