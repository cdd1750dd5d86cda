"""The contexts of a plan's layers: what their rows depend on beside their operators, equal ones made once."""

from __future__ import annotations

import functools
from dataclasses import replace

from simulator.lowering.layers.layer_context import ExpertExchange, LayerContext
from simulator.lowering.resolve.expert_rules import Groups
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.partition.strategies.experts import EXPERT, EXPERT_ROWS, EXPERT_TENSOR
from simulator.workload.graph import Dim
from simulator.workload.workload import Workload

__all__ = ["contexts_of"]


def contexts_of(
    resolved: ResolvedPlan, workload: Workload, sequences: int, length: int
) -> tuple[LayerContext, LayerContext]:
    """Return what the rows of a layer without experts depend on beside its operators, and those of one with experts.

    Args:
        sequences, length: of a microbatch on the ranks that share it, `length` tokens of each.
    """
    ctx = _shared(_context(resolved, workload, sequences, length))
    return _without_experts(ctx), ctx


@functools.lru_cache(maxsize=1024)
def _shared(ctx: LayerContext) -> LayerContext:
    """Return the first context that was equal to this one: it has its hash, and is quickly known again."""
    return ctx


@functools.lru_cache(maxsize=1024)
def _without_experts(ctx: LayerContext) -> LayerContext:
    """What layers without experts depend on: where those of others lie is nothing to them."""
    layout, groups = ctx.layout.without(EXPERT, EXPERT_TENSOR, EXPERT_ROWS), replace(ctx.groups, expert=())
    return _shared(replace(ctx, layout=layout, groups=groups, experts=ExpertExchange()))


@functools.lru_cache(maxsize=1024)
def _inside(groups: Groups) -> Groups:
    """The groups that layers communicate in: who has the same weights is nothing to them."""
    return replace(groups, replicas=(), expert_replicas=(), copies=(), expert_copies=())


def _context(resolved: ResolvedPlan, workload: Workload, sequences: int, length: int) -> LayerContext:
    experts = ExpertExchange(
        kind=resolved.expert_exchange,
        sorts=1 < resolved.expert_parallel < workload.model.experts,
        count=workload.model.experts,
        imbalance=resolved.expert_imbalance,
    )
    divided = resolved.sequence_parallel and resolved.tensor_parallel > 1
    habits, once = resolved.framework, 1.0 / resolved.microbatches
    return LayerContext(
        layout=resolved.layout,
        groups=_inside(resolved.groups),
        precision=resolved.precision,
        style=resolved.style,
        tokens=sequences * length,
        hidden=workload.model.hidden,
        experts=experts,
        exchange=resolved.context_parallel_kind,
        inner=resolved.context_parallel_inner,
        overlaps=resolved.overlap_tensor_parallel,
        splits=resolved.tensor_parallel_splits if divided else 1,
        gradient_bytes=resolved.added_bytes,
        copies_to_reduce=(habits.copies_gathered or habits.flat_units)
        and resolved.zero_stage == 3
        and resolved.fsdp_reduce == "microbatch",
        taken=once if habits.drops_gradients else 0.0,
        bucketed=once if habits.keeps_buckets and resolved.replicas > 1 and not resolved.zero_stage else 0.0,
        padded=resolved.tensor_parallel / resolved.layout.ways((Dim("sequence", length),))
        if resolved.layout.pads
        else 1.0,
        copied=(("all_gather", "reduce_scatter")[resolved.microbatch_size == 1 :])
        if habits.copies_sequence_parts and divided
        else (),
        fetches=resolved.shard_size if resolved.framework.fetch_time > 0 and resolved.zero_stage == 3 else 0,
        attended=0.0 if workload.document_length is None else workload.attended,
    )
