"""What a kind of model does not allow: rules between an architecture and a plan."""

from __future__ import annotations

import math

from simulator.errors import LayoutError, PlanError
from simulator.partition.strategies import STRATEGIES
from simulator.plan.plan import Plan
from simulator.schedules.base import Schedule
from simulator.workload.model import Model
from simulator.workload.workload import Workload

__all__ = ["check_model"]


def check_model(workload: Workload, plan: Plan, schedule: Schedule, pads: bool) -> None:
    """Refuse what the model's architecture does not allow.

    Args:
        pads: whether ranks pad their parts of sequences.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    model = workload.model
    if workload.target_length and not model.encoder_layers:
        raise PlanError(
            "target_length is the decoder's part of an encoder-decoder's sequences, but "
            f"model {model.name!r} has one stack. Way out: leave target_length out."
        )
    if workload.document_length is not None and not _skips_masked(model):
        raise PlanError(
            "packed documents shorten attention inside one stack of tokens, by a kernel that skips what is masked, but model "
            f"{model.name!r} has none such. Way out: leave document_length out."
        )
    if schedule.slices and (model.architecture != "transformer" or model.mtp_layers):
        raise PlanError(
            f"schedule {schedule.name!r} cuts sequences in slices that see what came before, which needs a decoder without "
            f"multi-token prediction, but model {model.name!r} is {_said(model)}. Way out: schedule = 'one_f_one_b', or "
            "model.mtp_layers = 0."
        )
    if plan.context_parallel > 1 and model.architecture in ("encoder_decoder", "vision"):
        raise PlanError(
            f"context_parallel deals the tokens of one kind of sequence out, but model {model.name!r} is {_said(model)}. "
            "Way out: context_parallel = 1."
        )
    if model.ssm_heads:
        _check_states(workload, plan)
    length, tensor = workload.decoder_length, plan.tensor_parallel
    if plan.sequence_parallel and length % tensor and not pads:
        raise PlanError(
            f"sequence_parallel needs a target_length that tensor_parallel divides, but {length} / {tensor} is no whole number. "
            f"Nearest: target_length = {max(1, round(length / tensor)) * tensor}."
        )


def _skips_masked(model: Model) -> bool:
    """Whether some layers attend inside one stack of tokens, by a kernel that skips what is masked."""
    attends = {"full", "window", "chunk"} & set(model.layer_mixers) and model.positions != "transformer_xl"
    return bool(attends) and model.architecture not in ("encoder_decoder", "vision", "network")


def _check_states(workload: Workload, plan: Plan) -> None:
    """A state that is carried along the sequence is divided by its heads, or every rank sees all tokens."""
    model, divided = workload.model, "state_heads" in STRATEGIES.get(plan.layout).dims
    if plan.sequence_parallel and not divided:
        raise LayoutError(
            f"a state is carried along all tokens, but layout {plan.layout!r} leaves state_heads of 'convolved channels' whole, so mesh "
            f"axis 'tensor' divides its sequence (model {model.name!r}). Way out: sequence_parallel = false, or layout = 'megatron'."
        )
    if divided and model.ssm_groups % plan.tensor_parallel:
        raise PlanError(
            f"tensor_parallel must divide the model's ssm_groups, but {model.ssm_groups} / {plan.tensor_parallel} is no whole "
            f"number (model {model.name!r}). Nearest: tensor_parallel = {math.gcd(model.ssm_groups, plan.tensor_parallel)}."
        )
    heads, context = model.ssm_heads // (plan.tensor_parallel if divided else 1), plan.context_parallel
    if heads % context:
        raise PlanError(
            "ranks that share a sequence deal out the heads of layers that carry a state along it, so context_parallel must divide those "
            f"of a tensor-parallel rank, but {heads} / {context} is no whole number (model {model.name!r}). Nearest: context_parallel = "
            f"{math.gcd(heads, context)}."
        )


def _said(model: Model) -> str:
    words = {
        "transformer": "a decoder with multi-token prediction",
        "vision": "an encoder of images",
        "network": "a network of layers",
    }
    return words.get(model.architecture, f"an {model.architecture.replace('_', '-')}")
