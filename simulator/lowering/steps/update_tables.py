"""The kernels of an update: norm, clipping, optimizer, clearing; tables made once for all plans that update as many weights alike."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from simulator.lowering.layers.casts import add_casts
from simulator.lowering.layers.holdings import MESH_WEIGHTS
from simulator.lowering.layers.rows import Rows
from simulator.lowering.memory.host_shards import shard_bytes
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.state import State
from simulator.program.program import OperatorTable
from simulator.remembered import hashed_once
from simulator.workload.optimizers import OPTIMIZERS, optimizer_cost
from simulator.workload.optimizers.base import OptimizerCost
from simulator.workload.precision import Precision

__all__ = ["Summed", "UpdateFacts", "norm_table", "optimizer_table", "update_facts"]

Summed = tuple[tuple[str, tuple[str, ...], float], ...]
"""(what, mesh axes, count) of weights of whose gradients ranks have a term each."""
TENSORS_PER_LAUNCH = 30
"""Tensors one multi-tensor-apply launch covers (four lists of pointers in a kernel's argument space)."""
TENSORS_PER_LIST, ELEMENTS_PER_LAUNCH = 48, 320 * 65536
"""Tensors and elements of one launch over lists, mostly two or three: depth_to_max_tensors, and depth_to_max_blocks blocks of kChunkSize
(ATen/native/cuda/MultiTensorApply.cuh)."""


@hashed_once
@dataclass(frozen=True, kw_only=True)
class UpdateFacts:
    """What the kernels of an update depend on, beside how many weights they change."""

    optimizer: str
    cost: OptimizerCost
    precision: Precision
    gradient_dtype: str
    gradient_bytes: int
    reduce_dtype: str
    reduce_bytes: float
    reductions: int
    """How often each gradient is added between ranks in another format than it is kept in; 0 = never."""
    divided: float
    """Weights whose gradients are divided together before they are added between ranks; 0 = none are."""
    checked: float
    """Weights whose gradients a norm looks through together for NaNs; 0 = none are."""
    zero_stage: int
    lanes: int
    replicas: int
    offloaded: float
    clips: bool
    fused: bool
    lists: bool
    looped: bool
    """The update takes one tensor after the other.  `lists`: operation by operation, of all at once or so."""
    drops: bool
    """Gradients are freed, not set to zero."""
    casts_gathered: bool
    flattens: bool
    reduces_whole: bool
    one_by_one: bool
    """Each tensor is updated by kernels of its own, and its gradient freed."""
    norms: int
    """Norms of every whole tensor that the update needs."""
    parts: tuple[str, ...]
    """Mesh axes of the ranks that update parts of one tensor."""


def update_facts(state: State, others: float = 0.0) -> UpdateFacts:
    """Return the facts of a plan, for a rank of whose weights the optimizer leaves this share to another."""
    resolved, framework, numbers = state.resolved, state.resolved.framework, state.workload.numbers
    alone = (
        numbers.master_weights and shard_bytes(state) > numbers.element
    )  # fp32 weights without a narrow copy, and so are their gradients
    cost = optimizer_cost(
        state.workload.optimizer,
        4 if alone else numbers.element,
        4 if alone else resolved.gradient_bytes,
        numbers.master_weights and not alone,
        others,
        resolved.moment_bytes,
    )
    looped = OPTIMIZERS.get(state.workload.optimizer).looped_results > 0
    return UpdateFacts(
        optimizer=state.workload.optimizer,
        cost=resolved.exchange.update(resolved.step_kind, cost, resolved.exchange_terms),
        precision=resolved.precision,
        gradient_dtype=resolved.gradient_dtype,
        gradient_bytes=resolved.gradient_bytes,
        reduce_dtype=resolved.reduce_dtype,
        reduce_bytes=resolved.reduce_bytes,
        reductions=resolved.reductions if resolved.reduces and resolved.reduce_dtype != resolved.gradient_dtype else 0,
        divided=_together(resolved) if resolved.framework.divides_gradients and resolved.reduces else 0.0,
        checked=_together(resolved) if _checks(resolved) else 0.0,
        zero_stage=resolved.zero_stage,
        lanes=resolved.lanes,
        replicas=resolved.replicas if resolved.reduces else 1,
        offloaded=resolved.optimizer_offload,
        clips=resolved.clip_gradients,
        fused=framework.fused_optimizer,
        lists=framework.updates_in_lists or looped,
        looped=looped,
        drops=framework.drops_gradients,
        casts_gathered=framework.casts_gathered,
        flattens=framework.flattens_gradients,
        reduces_whole=framework.reduces_whole,
        one_by_one=resolved.optimizer_in_backward,
        norms=OPTIMIZERS.get(state.workload.optimizer).norms,
        parts=_parts(resolved),
    )


def _parts(resolved: ResolvedPlan) -> tuple[str, ...]:
    """Mesh axes along which a tensor lies in parts where it is updated: those that split layers, and over which states are sharded."""
    tensor = resolved.groups.tensor if resolved.tensor_parallel > 1 else ()
    return tuple(dict.fromkeys((*tensor, *(resolved.groups.shards if resolved.zero_stage else ()))))


def _together(resolved: ResolvedPlan) -> float:
    """Weights of a bucket, or all, whose gradients a kernel takes together before replicas add them up; 0 where none stand whole."""
    if resolved.zero_stage == 3:
        return 0.0
    return resolved.bucket_size / resolved.gradient_bytes if resolved.overlap_gradients else math.inf


def _checks(resolved: ResolvedPlan) -> bool:
    """Whether gradients are looked through for NaNs, which under loss scaling are no error."""
    return resolved.framework.checks_gradients and not resolved.precision.loss_scaling


@functools.lru_cache(maxsize=1024)
def norm_table(
    facts: UpdateFacts, held: float, mine: float, kept: float, summed: Summed, tensors: float
) -> OperatorTable:
    """Local part of the gradient norm, overflow check and unscaling, and the sum of gradients of which tensor-parallel ranks have terms.

    Args:
        held: weights on a GPU [count]; `mine`: those whose states it keeps; `kept`: those whose gradients it keeps; `summed`: those of
            whose gradients ranks that split layers have a term each; `tensors`: how many tensors they are.
    """
    gradients = mine * facts.gradient_bytes
    rows = Rows("gradient norm")
    sharded = kept / held if facts.zero_stage >= 2 else 1.0
    for what, group, count in summed:
        rows.sends(
            f"{what} gradients",
            "all_reduce",
            count * (sharded if what == MESH_WEIGHTS else 1.0) * facts.gradient_bytes,
            group,
            facts.gradient_dtype,
            "optimizer",
        )
    launches = max(1, round(tensors / TENSORS_PER_LAUNCH))
    if facts.precision.loss_scaling:
        rows.moves("unscale gradients", facts.gradient_dtype, gradients, gradients, "optimizer", launches)
    if facts.clips:
        rows.moves("gradient norm", facts.gradient_dtype, gradients, 0.0, "optimizer", launches + 2)
        rows.moves("clip gradients", facts.gradient_dtype, gradients, gradients, "optimizer", launches)
    return rows.table()


@functools.lru_cache(maxsize=1024)
def optimizer_table(
    facts: UpdateFacts, held: float, mine: float, kept: float, summed: Summed, tensors: float
) -> OperatorTable:
    """The optimizer's traffic on this rank's shard, and clearing the gradients; arguments as of `norm_table`."""
    cost = facts.cost
    updated = mine * (1.0 - facts.offloaded)
    batch = 1 if facts.one_by_one else TENSORS_PER_LAUNCH
    whole = held * facts.gradient_bytes
    launches = max(cost.fused_launches, round(tensors / batch)) if facts.fused else int(12 * tensors)
    read, written = (cost.read, cost.written) if facts.fused else (2 * cost.read, 2 * cost.written)
    if facts.lists and any(cost.listed):
        read, written = cost.listed
        together = max(tensors // TENSORS_PER_LIST, math.ceil(updated / ELEMENTS_PER_LAUNCH))
        launches = 8 * int(tensors if facts.looped else together)
    rows = Rows("optimizer")
    rows.moves(
        facts.optimizer,
        "fp32",
        read * updated,
        written * updated,
        "optimizer",
        flops=cost.flops * updated,
        launches=launches,
    )
    if facts.norms and facts.parts:
        rows.sends("norms of tensors", "all_reduce", 4.0 * facts.norms * tensors, facts.parts, "fp32", "optimizer")
    if not (facts.casts_gathered and facts.zero_stage == 3):
        add_casts(rows, "weights", held, facts.precision, phase="optimizer", launches=max(1, int(tensors)))
    for label, together, written, kernels in (
        ("divide gradients", facts.divided, whole, 1),
        ("check gradients", facts.checked, 0.0, 3),
    ):
        if together:
            rows.moves(
                label,
                facts.gradient_dtype,
                whole,
                written,
                "optimizer",
                launches=kernels * (math.ceil(held / together) or 1),
            )
    if facts.reductions:
        wide, narrow, times = facts.gradient_bytes, facts.reduce_bytes, facts.reductions
        rows.moves(
            f"cast gradients to {facts.reduce_dtype} and back",
            facts.gradient_dtype,
            times * (wide * held + narrow * mine),
            times * (narrow * held + wide * mine),
            "optimizer",
            launches=2 * times * max(1, round(tensors / TENSORS_PER_LAUNCH)),
        )
    flat = _flat_copies(facts, held, mine)
    if any(flat):
        rows.moves(
            "flatten gradients",
            facts.gradient_dtype,
            flat[0],
            flat[1],
            "optimizer",
            launches=3 * max(1, round(tensors / TENSORS_PER_LAUNCH)),
        )
    if not facts.drops:
        rows.moves(
            "clear gradients",
            facts.gradient_dtype,
            0.0,
            kept * facts.gradient_bytes * (facts.lanes if facts.zero_stage == 2 else 1),
            "optimizer",
            launches=2,
        )
    return rows.table()


def _flat_copies(facts: UpdateFacts, held: float, mine: float) -> tuple[float, float]:
    """Return the bytes (read, written) of a framework's flat copies of gradients; what stands of them is in `habits`.

    Replicas reduce through flat buckets: a copy into them, and one back but where ZeRO-1 and 2 reduce each part to its owner
    alone.  The optimizer's part is then flattened and cast to fp32; without ZeRO the other way round; fp32 gradients are updated
    in place, and what the CPU updates is cast there.
    """
    if not facts.flattens or facts.zero_stage == 3:
        return 0.0, 0.0
    width, whole = facts.gradient_bytes, not facts.zero_stage or facts.reduces_whole
    buckets = (2.0 if whole else 1.0) * width * held if facts.replicas > 1 else 0.0
    if width > facts.precision.element:
        return buckets, buckets
    updated = 1.0 - facts.offloaded
    if facts.zero_stage or facts.replicas == 1:
        return buckets + 2.0 * width * mine * updated, buckets + (width + 4.0) * mine * updated
    return buckets + (width + 4.0) * held * updated, buckets + 8.0 * held * updated
