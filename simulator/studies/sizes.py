"""How large a question may be: beyond these the answer would take minutes or gigabytes."""

from __future__ import annotations

from simulator.errors import PlanError

__all__ = ["MOST_SCHEDULE_ACTIONS", "MOST_VARIANTS", "check_actions"]

MOST_SCHEDULE_ACTIONS = 1_000_000
"""Pipeline actions of a schedule shown alone."""

MOST_VARIANTS = 64
"""Rows of one comparison."""


def check_actions(ranks: int, microbatches: int, chunks: int) -> None:
    """Refuse a schedule of more actions than `MOST_SCHEDULE_ACTIONS`.

    Raises:
        PlanError: it has more.
    """
    actions = 2 * max(ranks, 1) * max(microbatches, 1) * max(chunks, 1)
    if actions > MOST_SCHEDULE_ACTIONS:
        raise PlanError(
            f"a schedule may have at most {MOST_SCHEDULE_ACTIONS} actions, but 2 x {ranks} ranks x {microbatches} "
            f"microbatches x {chunks} chunks = {actions}. Use fewer of them"
        )
