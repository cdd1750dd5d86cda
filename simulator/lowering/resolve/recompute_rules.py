"""What a plan may say about recompute: resolved with the framework's habit, and refused where it could have no effect."""

from __future__ import annotations

from simulator.errors import PlanError, refuse
from simulator.lowering.layers.recompute import Recompute, runs_again
from simulator.options.option import chosen
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.plan.recompute_policy import load_recompute_policy
from simulator.workload.families import FAMILIES
from simulator.workload.operator import KernelStyle
from simulator.workload.workload import Workload

__all__ = ["resolve_recompute"]


def resolve_recompute(
    workload: Workload, plan: Plan, framework: Framework, chunks: int, split: tuple[int, ...] | None
) -> Recompute:
    """Return what is computed again in the backward pass.

    Args:
        chunks: of the pipeline, of layers.
        split: layers per chunk, where they are not as even as can be.

    Raises:
        PlanError: a setting that could have no effect, or more layers than a chunk has.
    """
    kind: str = chosen(plan, framework, "recompute")
    policy = load_recompute_policy(plan.recompute_policy) if plan.recompute_policy else None
    if policy is not None:
        _check_policy(plan)
        kind = "policy"
    found = Recompute(
        kind,
        plan.recompute_modules or (),
        plan.recompute_method or "",
        plan.recompute_layers or 0,
        policy.name if policy else "",
        policy.saves if policy else (),
        "layer" if plan.recompute_method == "uniform" else framework.recompute_extent,
    )
    largest = max(split) if split else -(-workload.model.layers // chunks)
    _check(found, bool(found.modules or found.method or found.layers), largest)
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


def _check_modules(recompute: Recompute, workload: Workload) -> None:
    """Refuse modules that no layer of the model has.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    model, length = workload.model, workload.sequence_length
    architecture, numbers = FAMILIES.get(model.architecture), workload.numbers
    source = length if workload.decoder_length else 0
    parts = [
        architecture.part(model, kind, 1, length, numbers, KernelStyle(), model.vocabulary, 0, 1, source)
        for kind in dict.fromkeys(model.layer_kinds)
    ]
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
    if bool(recompute.method) != bool(recompute.layers):
        refuse(
            "recompute_method and recompute_layers belong together",
            f"recompute_method = {recompute.method or None!r} and recompute_layers = {recompute.layers or None}",
            "both or neither",
        )
    if recompute.method == "uniform" and recompute.kind != "full":
        refuse(
            "recompute_method 'uniform' keeps the inputs of groups of whole layers",
            f"recompute = {recompute.kind!r}",
            "recompute = 'full', or recompute_method = 'block'",
        )
    if recompute.method == "every" and recompute.layers == 1:
        refuse("every layer is what recompute does by itself", "recompute_layers = 1", "leave recompute_method out")
    if recompute.layers > largest:
        refuse(
            "recompute_layers counts layers of a chunk",
            f"it is {recompute.layers} and the largest chunk has {largest}",
            f"recompute_layers = {largest}",
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
