"""What a plan may say about the host: refused where it could have no effect."""

from __future__ import annotations

from simulator.errors import PlanError
from simulator.plan.plan import Plan

__all__ = ["check_offload"]


def check_offload(plan: Plan) -> None:
    """Refuse settings of the host that could have no effect or cannot be.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    if plan.optimizer_offload_overlap and not plan.optimizer_offload:
        raise PlanError(
            "optimizer_offload_overlap is about copies of offloaded optimizer states, but optimizer_offload = 0. Way out: "
            "leave it out, or optimizer_offload = 1."
        )
    if plan.parameter_offload and plan.zero_stage != 3:
        raise PlanError(
            f"parameter_offload keeps shards of weights on the host until they are gathered, but zero_stage = {plan.zero_stage} keeps "
            f"whole weights (parameter_offload = {plan.parameter_offload}). Way out: leave it out, or zero_stage = 3."
        )
    if plan.parameter_offload and plan.activation_offload:
        raise PlanError(
            "weights and activations would wait for one link to come back from the host, and their order there is not modelled, but "
            f"parameter_offload = {plan.parameter_offload} and activation_offload = {plan.activation_offload}. Way out: one of the two."
        )
    if plan.activation_offload and plan.zero_stage == 3 and plan.fsdp_unit not in (None, 1):
        raise PlanError(
            "activations go to the host layer by layer, so FSDP units must be layers too, but fsdp_unit = "
            f"{plan.fsdp_unit!r} and activation_offload = {plan.activation_offload}. Way out: fsdp_unit = 1."
        )
