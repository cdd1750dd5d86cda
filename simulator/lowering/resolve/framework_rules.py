"""What a plan asks of its framework that the code, as its profile has it, does not run: told, never refused."""

from __future__ import annotations

from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Schedule

__all__ = ["beyond_framework"]


def beyond_framework(framework: Framework, schedule: Schedule, plan: Plan) -> str:
    """Return in words what keeps a plan from being one that its framework runs; "" = nothing, or nobody looked it up.

    Schedules of the user's own are not judged.
    """
    judged = plan.pipeline_parallel > 1 and schedule.name in SCHEDULES.members
    lacks = framework.lacks(plan, schedule.name if judged else None)
    if not lacks:
        return ""
    choices = " with ".join(f"{field} = {_text(value)}" for field, value in lacks.items())
    return f"framework {framework.name!r} does not run {choices}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)
