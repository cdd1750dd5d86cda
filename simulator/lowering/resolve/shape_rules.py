"""What must divide what: heads, tokens and layers by the degrees of a plan, each rule with the nearest value that works."""

from __future__ import annotations

from simulator.errors import PlanError
from simulator.lowering.resolve.degrees import nearest_divisor
from simulator.lowering.resolve.head_rules import check_key_heads
from simulator.partition.strategies import STRATEGIES
from simulator.partition.strategies.base import TENSOR
from simulator.partition.strategies.context import RING_SELF_ATTENTION
from simulator.plan.plan import Plan
from simulator.schedules import SCHEDULES
from simulator.workload.workload import Workload

__all__ = ["check_shapes"]


def check_shapes(workload: Workload, plan: Plan, pads: bool) -> None:
    """Refuse a plan that cuts the model or its sequences into unequal pieces.

    Args:
        pads: whether tensor-parallel ranks pad their parts of sequences that they do not divide (`Framework.pads_sequences`).

    Raises:
        PlanError: a rule is broken; the message names the nearest value that works.
    """
    _check_tensor(workload, plan)
    _check_context(workload, plan)
    _check_tokens(workload, plan, pads)
    _check_split(workload, plan)


def _check_tensor(workload: Workload, plan: Plan) -> None:
    model, t = workload.model, plan.tensor_parallel
    plan.check_needs("tensor_parallel", "tensor_mesh")
    strategy = STRATEGIES.get(plan.layout)
    divided = strategy.dims if strategy.axes == (TENSOR,) else frozenset()  # of others: mesh_rules.py
    for name, value in (("heads", model.heads), ("ffn", model.ffn)):
        if name in divided and value % t:
            raise PlanError(
                f"tensor_parallel must divide the model's {name}, but {value} / {t} is no whole number "
                f"(model {model.name!r}). Nearest: tensor_parallel = {nearest_divisor(value, t)}."
            )
        if name == "heads" and name in divided:
            check_key_heads(model, t)
    plan.check_needs("tensor_parallel", "sequence_parallel", "overlap_tensor_parallel", "layout")


def _check_context(workload: Workload, plan: Plan) -> None:
    model, t, c = workload.model, plan.tensor_parallel, plan.context_parallel
    plan.check_needs("context_parallel", "context_parallel_kind")
    scores = plan.context_parallel_kind == RING_SELF_ATTENTION  # of all keys: no rank has less work than others
    cut, said = (c, "a piece per rank") if scores else (2 * c, "two pieces per rank")
    if workload.sequence_length % cut and c > 1:
        raise PlanError(
            f"context_parallel cuts a sequence into {said}, which must be whole tokens, but "
            f"{workload.sequence_length} / {c if scores else f'(2 x {c})'} is no whole number. Nearest: sequence_length = "
            f"{max(1, round(workload.sequence_length / cut)) * cut}."
        )
    if plan.context_parallel_kind == "ulysses" and model.kv_heads % (t * c):
        raise PlanError(
            "ulysses deals heads out over the ranks that share a sequence, so tensor_parallel x context_parallel must divide "
            f"the model's kv_heads, but {model.kv_heads} / ({t} x {c}) is no whole number. Way out: context_parallel_kind = "
            "'ring'."
        )
    if plan.context_parallel_kind == "ulysses" and plan.attention == "unfused":
        raise PlanError(
            "ulysses is built around a fused attention kernel, but attention = 'unfused'. Way out: attention = 'flash2'."
        )


def _check_tokens(workload: Workload, plan: Plan, pads: bool) -> None:
    model, t, c = workload.model, plan.tensor_parallel, plan.context_parallel
    if plan.sequence_parallel and (workload.sequence_length // c) % t and not pads:
        raise PlanError(
            f"sequence_parallel needs a sequence_length that tensor_parallel divides, but {workload.sequence_length} / "
            f"{t * c} is no whole number. Nearest: sequence_length = {max(1, round(workload.sequence_length / (t * c))) * t * c}."
        )
    if workload.sequence_length > model.most_tokens:
        raise PlanError(
            f"the model's position table ends at {model.sequence_length} tokens, but sequence_length = "
            f"{workload.sequence_length}. Nearest: sequence_length = {model.sequence_length}."
        )


def _check_split(workload: Workload, plan: Plan) -> None:
    """A split by hand has a number per chunk, and they sum to the model's layers."""
    model = workload.model
    said = [("layer_split", "", plan.layer_split)] if plan.layer_split is not None else []
    said += [
        ("replica_layer_splits", f"[{number}]", split) for number, split in enumerate(plan.replica_layer_splits or ())
    ]
    for name, which, split in said:
        chunks = plan.pipeline_parallel * SCHEDULES.get(plan.schedule or "1f1b").held(plan.chunks_per_rank)
        if len(split) != chunks or sum(split) != model.depth:
            raise PlanError(
                f"{name}{which} must give {chunks} chunks (pipeline_parallel x chunks_per_rank) that sum to the model's "
                f"{model.depth} layers, but it has {len(split)} entries that sum to {sum(split)}. "
                f"Way out: leave {name} out for a balanced split."
            )
        plan.check_needs("chunks", name, chunks=chunks)
