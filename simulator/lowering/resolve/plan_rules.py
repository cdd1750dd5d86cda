"""Settings of a plan that depend on one another: refused where one of them could have no effect."""

from __future__ import annotations

from simulator.errors import PlanError
from simulator.plan.plan import Plan

__all__ = ["check_reduce_dtype"]


def check_reduce_dtype(plan: Plan, gradient: str, copies: int) -> None:
    """Refuse a number format of reductions that could have no effect.

    Args:
        gradient: that of the buffers.
        copies: of the weights, on as many ranks.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    plan.check_needs("copies", "gradient_reduce_dtype", copies=copies)
    wanted = plan.gradient_reduce_dtype
    if wanted is None:
        return
    if wanted == gradient:
        why = f"gradients are added in the format of their buffers anyway, but both are {gradient}"
    elif plan.quantized_gradients:
        why = "quantised gradients travel as 4-bit integers, but quantized_gradients = true"
    else:
        return
    raise PlanError(f"{why} (gradient_reduce_dtype = {wanted!r}). Way out: leave gradient_reduce_dtype out.")
