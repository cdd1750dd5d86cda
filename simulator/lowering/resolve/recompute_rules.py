"""What a plan may say about recompute: resolved with the framework's habit, and refused where it could have no effect."""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import PlanError, refuse
from simulator.lowering.layers.recompute import AUTOMATIC, CHAINS, Recompute, runs_again
from simulator.options.option import chosen
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.plan.recompute_policy import load_recompute_policy
from simulator.schedules.base import Schedule
from simulator.workload.families import FAMILIES
from simulator.workload.layer_case import LayerCase
from simulator.workload.operator import KernelStyle
from simulator.workload.workload import Workload

__all__ = ["resolve_recompute"]


def resolve_recompute(
    workload: Workload, plan: Plan, framework: Framework, schedule: Schedule, chunks: int, split: tuple[int, ...] | None
) -> Recompute:
    """Return what is computed again in the backward pass; `AUTOMATIC` layers where the plan leaves their number to memory.

    Args:
        schedule: of the pipeline, and how many `chunks` of layers it has.
        split: layers per chunk, where they are not as even as can be.

    Raises:
        PlanError: a setting that could have no effect, or more layers than a chunk has.
    """
    kind: str = chosen(plan, framework, "recompute")
    revolves = kind == "revolve"
    plan.check_needs("recompute", "recompute_checkpoints", "partition_activations", recompute=kind)
    plan.check_needs("tensor_parallel", "partition_activations")
    plan.check_needs("sequence_parallel", "partition_activations")
    policy = load_recompute_policy(plan.recompute_policy) if plan.recompute_policy else None
    if policy is not None:
        _check_policy(plan)
        kind = "policy"
    number, method = plan.recompute_layers or 0, plan.recompute_method or ""
    if number == "auto":
        number, method = AUTOMATIC, method or "uniform"
    if revolves:
        _check_revolve(plan)
    found = Recompute(
        "full" if revolves else kind,
        plan.recompute_modules or (),
        "revolve" if revolves else method,
        plan.recompute_checkpoints or 0 if revolves else number,
        policy.name if policy else "",
        policy.saves if policy else (),
        "layer" if method == "uniform" else framework.recompute_extent,
    )
    largest = max(split) if split else -(-workload.model.layers // chunks)
    _check(found, bool(found.modules or found.method or found.layers), largest)
    if found.method in CHAINS:
        _check_chain(
            workload, plan, schedule, "recompute = 'revolve'" if revolves else "recompute_method = 'recursive'"
        )
    if found.modules:
        _check_modules(found, workload)
    return found


def _check_policy(plan: Plan) -> None:
    """Refuse what a policy stands in place of.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    for name in ("recompute", "recompute_modules"):
        if getattr(plan, name) is not None:
            raise PlanError(
                f"recompute_policy says what is kept and what is made again, but {name} = {getattr(plan, name)!r} is given "
                f"beside recompute_policy = {plan.recompute_policy!r}. Way out: leave {name} out."
            )


def _check_revolve(plan: Plan) -> None:
    """Refuse what Revolve decides itself, and a number of inputs left open.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    for name in ("recompute_method", "recompute_layers"):
        if (value := getattr(plan, name)) is not None:
            refuse(
                "recompute = 'revolve' decides itself which layers run again",
                f"{name} = {value!r}",
                f"leave {name} out, or recompute = 'full'",
            )
    if plan.recompute_checkpoints is None:
        refuse(
            "recompute = 'revolve' keeps the inputs of so many layers of a chunk at once",
            "recompute_checkpoints is not given",
            "recompute_checkpoints = 4, or recompute = 'full'",
        )


def _check_chain(workload: Workload, plan: Plan, schedule: Schedule, said: str) -> None:
    """Refuse where layers cannot run again one after the other on the way to others.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    way = "recompute = 'full' without a recompute_method"
    if plan.zero_stage == 3:
        refuse("layers that run again on the way to others need whole weights", f"{said} and zero_stage = 3", way)
    if plan.activation_offload:
        values = f"{said} and activation_offload = {plan.activation_offload}"
        refuse("inputs that a backward stores are not copied to the host", values, way)
    if schedule.splits_backward:
        values = f"{said} and schedule {schedule.name!r} splits the backward"
        refuse("layers that run again one at a time make their weight gradients at once", values, way)
    if workload.model.encoder_layers:
        values = f"{said} and model {workload.model.name!r} has an encoder and a decoder"
        refuse("a chain of layers has one beginning", values, way)


def _check_modules(recompute: Recompute, workload: Workload) -> None:
    """Refuse modules that no layer of the model has.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    model, length = workload.model, workload.sequence_length
    architecture, numbers = FAMILIES.get(model.architecture), workload.numbers
    case = LayerCase(
        model=model,
        kind="layer",
        sequences=1,
        length=length,
        precision=numbers,
        style=KernelStyle(),
        vocabulary=model.vocabulary,
        source=length if workload.decoder_length else 0,
    )
    parts = [architecture.part(replace(case, kind=kind)) for kind in dict.fromkeys(model.layer_kinds)]
    for module in recompute.modules:
        if not any(runs_again(part, Recompute("selective", (module,))) for part in parts):
            raise PlanError(
                f"a recomputed module is one that the model has, but {module!r} is none of model {model.name!r}. Way out: leave "
                f"{module} out of recompute_modules."
            )


def _check(recompute: Recompute, given: bool, largest: int) -> None:
    """Refuse recompute settings that could have no effect.

    Args:
        given: whether the plan says which layers, or modules.
        largest: layers of the largest chunk.

    Raises:
        PlanError: with the rule, the values and a way out.
    """

    if recompute.kind == "none" and given:
        refuse(
            "recompute_layers and recompute_modules say what is recomputed",
            "recompute = 'none'",
            "recompute = 'full' or 'selective'",
        )
    counted = recompute.method not in ("", "recursive")
    if counted != bool(recompute.layers):
        if recompute.method == "recursive":
            refuse(
                "recompute_method 'recursive' cuts chunks in halves, whatever their layers",
                f"recompute_layers = {_said(recompute.layers)}",
                "leave recompute_layers out, or recompute_method = 'uniform'",
            )
        refuse(
            "recompute_method and recompute_layers belong together",
            f"recompute_method = {recompute.method or None!r} and recompute_layers = {_said(recompute.layers)}",
            "both or neither",
        )
    if recompute.method in ("uniform", "recursive") and recompute.kind != "full":
        refuse(
            f"recompute_method {recompute.method!r} keeps the inputs of groups of whole layers",
            f"recompute = {recompute.kind!r}",
            "recompute = 'full', or recompute_method = 'block'",
        )
    if recompute.method == "every" and recompute.layers == 1:
        refuse("every layer is what recompute does by itself", "recompute_layers = 1", "leave recompute_method out")
    if recompute.layers == AUTOMATIC and recompute.method != "uniform":
        refuse(
            "recompute_layers 'auto' is the size of groups that needs least memory",
            f"recompute_method = {recompute.method!r}",
            "recompute_method = 'uniform', or a number of layers",
        )
    if recompute.layers > largest:
        name = "recompute_checkpoints" if recompute.method == "revolve" else "recompute_layers"
        refuse(
            f"{name} counts layers of a chunk",
            f"it is {recompute.layers} and the largest chunk has {largest}",
            f"{name} = {largest}",
        )
    if recompute.modules and recompute.kind != "selective":
        refuse(
            "recompute_modules are those of selective recompute",
            f"recompute = {recompute.kind!r}",
            "recompute = 'selective'",
        )
    double = {"moe_act", "shared_experts"} & set(recompute.modules)
    if "moe" in recompute.modules and double:
        refuse(
            "moe recomputes all of the experts",
            f"{sorted(double)[0]!r} is named too",
            f"leave {sorted(double)[0]} out",
        )


def _said(layers: int) -> object:
    """Number of layers as the plan has it."""
    return "'auto'" if layers == AUTOMATIC else layers or None
