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
    if plan.activation_offload and plan.zero_stage == 3 and plan.fsdp_unit not in (None, 1):
        raise PlanError(
            "activations go to the host layer by layer, so FSDP units must be layers too, but fsdp_unit = "
            f"{plan.fsdp_unit!r} and activation_offload = {plan.activation_offload}. Way out: fsdp_unit = 1."
        )
