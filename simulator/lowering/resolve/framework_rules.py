"""What a plan asks of its framework that the code, as its profile has it, does not run: told, never refused."""

from __future__ import annotations

from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.plan.plan import Plan
from simulator.schedules import SCHEDULES

__all__ = ["beyond_framework"]


def beyond_framework(resolved: ResolvedPlan, plan: Plan) -> str:
    """Return in words what keeps a plan from being one that its framework runs; "" = nothing, or nobody looked it up.

    Schedules of the user's own are not judged.
    """
    schedule = resolved.schedule.name
    judged = plan.pipeline_parallel > 1 and schedule in SCHEDULES.members
    lacks = resolved.framework.lacks(plan, schedule if judged else None)
    if not lacks:
        return ""
    choices = " with ".join(f"{field} = {_text(value)}" for field, value in lacks.items())
    return f"framework {resolved.framework.name!r} does not run {choices}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)
