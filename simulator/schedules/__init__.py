"""Pipeline schedules: who runs which chunk for which microbatch, in what order.  One file per schedule."""

from __future__ import annotations

from simulator.registry import Family
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["SCHEDULES", "Action", "PipelineOrder", "Placement", "Schedule", "Shape"]

SCHEDULES = Family("schedule", "simulator.schedules", "Schedule")
"""All schedules by name and alias: `SCHEDULES.get("1f1b")`."""
