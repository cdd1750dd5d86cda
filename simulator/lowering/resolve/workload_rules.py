"""What a workload may say, and a plan of the loss: refused where it could have no effect."""

from __future__ import annotations

from simulator.errors import PlanError, refuse
from simulator.partition.strategies import STRATEGIES
from simulator.plan.plan import Plan
from simulator.plan.values import part_away
from simulator.schedules.base import Schedule
from simulator.workload.operator import KernelStyle
from simulator.workload.optimizers import OPTIMIZERS
from simulator.workload.workload import Workload

__all__ = ["check_chunks", "check_documents", "check_gates", "check_loss", "check_optimizer"]


def check_documents(workload: Workload, style: KernelStyle, schedule: Schedule) -> None:
    """Refuse packed documents where attention would not change.

    Raises:
        PlanError: with the rule, the values and a way out.
    """

    length, spread = workload.document_length, workload.document_spread
    if length is None:
        if spread:
            refuse(
                "document_spread is that of the lengths of packed documents",
                f"document_spread = {spread} and document_length is not given",
                "leave document_spread out, or give document_length",
            )
        return
    if workload.attended >= workload.sequence_length:
        refuse(
            "packed documents are shorter than a sequence",
            f"document_length x (1 + document_spread^2) = {length} x (1 + {spread}^2) and sequence_length = "
            f"{workload.sequence_length}",
            "leave document_length out",
        )
    if style.attention in ("unfused", "chunked"):
        refuse(
            "attention inside documents needs a kernel that skips what the mask hides",
            f"attention = {style.attention!r} computes all scores and masks them",
            "attention = 'flash2', or leave document_length out",
        )
    if schedule.slices:
        refuse(
            "slices of a sequence attend to those before them",
            f"schedule = {schedule.name!r} slices sequences of packed documents",
            "schedule = 'one_f_one_b', or leave document_length out",
        )


def check_chunks(workload: Workload, plan: Plan, style: KernelStyle) -> None:
    """Refuse attention in chunks of keys where it could not run as published.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    if style.attention != "chunked":
        return
    if plan.context_parallel > 1:
        refuse(
            "attention in chunks scans the keys of one rank",
            f"attention = 'chunked' and context_parallel = {plan.context_parallel}",
            "attention = 'flash2', or context_parallel = 1",
        )
    if workload.model.positions in ("relative_bias", "transformer_xl"):
        refuse(
            "attention in chunks adds nothing to its scores",
            f"attention = 'chunked' and model.positions = {workload.model.positions!r}",
            "attention = 'unfused'",
        )


def check_optimizer(workload: Workload, plan: Plan, autocast: bool, on_servers: bool) -> None:
    """Refuse an update on the host that needs a GPU, and formats of states that the optimizer, the weights or servers do not have.

    Args:
        autocast: whether the weights themselves are fp32.
        on_servers: whether servers keep the states.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    if plan.optimizer_offload and OPTIMIZERS.get(workload.optimizer).newton_schulz:
        refuse(
            "products that make matrices orthogonal run on the GPU",
            f"optimizer = {workload.optimizer!r} and optimizer_offload = {part_away(plan.optimizer_offload):g}",
            "leave optimizer_offload out, or optimizer = 'adam'",
        )
    plan.check_needs("optimizer_offload", "moment_dtype", "splits_master_weights")
    moments, given = OPTIMIZERS.get(workload.optimizer).moments, plan.moment_dtype
    if given is not None and (not moments or len(given) not in (1, moments)):
        refuse(
            "moment_dtype is one format, or one for each moment that an optimizer keeps of every weight",
            f"optimizer = {workload.optimizer!r} has {moments or 'none of a format to choose'} and moment_dtype = {list(given)}",
            "leave moment_dtype out, or one format for all"
            if moments
            else "leave moment_dtype out, or optimizer = 'adam'",
        )
    if given is not None and on_servers:
        refuse(
            "servers keep the optimizer's states, in fp32",
            f"gradient_exchange = {plan.gradient_exchange!r} and moment_dtype = {list(given)}",
            "one of the two",
        )
    if plan.splits_master_weights and (autocast or workload.numbers.compute != "bf16"):
        refuse(
            "the upper halves of fp32 weights are bf16 weights",
            f"precision = {workload.precision!r}{' under autocast, whose weights are fp32,' if autocast else ''} and "
            "splits_master_weights = true",
            "leave splits_master_weights out" + ("" if autocast else ", or precision = 'bf16'"),
        )


def check_gates(workload: Workload, plan: Plan, style: KernelStyle) -> None:
    """Refuse inputs kept in 8 bits where no kernel of a gate would read them.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    gated = workload.model.architecture != "network" and workload.model.gated_mlp
    if plan.narrow_gate_input and not (gated and style.fused_bias_activation and not style.plain_gate):
        refuse(
            "narrow_gate_input is about a gate that is one kernel",
            f"gated_mlp = {str(gated).lower()}" if not gated else f"framework = {plan.framework!r}",
            "leave narrow_gate_input out" + ("" if gated else ", or a model with gates"),
        )


def check_loss(plan: Plan, style: KernelStyle) -> None:
    """Refuse settings of the loss that could have no effect.

    Args:
        style: the kernels, as resolved.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    plan.check_needs("sequence_parallel", "tensor_parallel_splits")
    plan.check_needs("tensor_parallel", "vocabulary_parallel_loss")
    if plan.vocabulary_parallel_loss is not None and "vocabulary" not in STRATEGIES.get(plan.layout).dims:
        refuse(
            "vocabulary_parallel_loss is about logits that tensor-parallel ranks share",
            f"layout = {plan.layout!r} leaves the vocabulary whole",
            "leave it out, or layout = 'megatron'",
        )
    if plan.loss_chunks is not None and style.gathers_logits:
        raise PlanError(
            "a loss in chunks never gathers all logits, but loss_chunks is set and the ranks of tensor_parallel gather them. Way "
            "out: vocabulary_parallel_loss = true, or leave loss_chunks out."
        )
    if style.fused_cross_entropy and style.gathers_logits:
        raise PlanError(
            "a fused cross entropy never gathers all logits, but fused_cross_entropy = true and vocabulary_parallel_loss = false. "
            "Way out: one of the two."
        )
