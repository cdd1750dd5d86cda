"""How large a question may be: beyond these the answer would take minutes or gigabytes."""

from __future__ import annotations

__all__ = ["MOST_SCHEDULE_ACTIONS", "MOST_VARIANTS"]

MOST_SCHEDULE_ACTIONS = 1_000_000
"""Pipeline actions of a schedule shown alone."""

MOST_VARIANTS = 64
"""Rows of one comparison."""
