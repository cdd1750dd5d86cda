"""Pipeline schedules: who runs which chunk for which microbatch, in what order.  One file per schedule."""

from __future__ import annotations

from simulator.registry import Family
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, PipelineOrder
from simulator.schedules.own_code import is_code_file, known_schedule_file
from simulator.schedules.own_schedule import is_order_file, read_schedule
from simulator.schedules.placement import Placement

__all__ = ["SCHEDULES", "Action", "PipelineOrder", "Placement", "Schedule", "Shape"]


class _Schedules(Family[Schedule]):
    """The family; the path of a file that ends in .csv stands for the order in it, one that ends in .py for code that was run."""

    def get(self, name: str) -> Schedule:
        """Return the schedule with this name or alias, or the one of this file.

        Raises:
            UnknownNameError: nobody bears the name.
            SpecError, ProgramError: the file cannot be read, its order cannot run, or it is code that nobody asked to run.
        """
        if is_code_file(name):
            return known_schedule_file(name)
        return read_schedule(name)[0] if is_order_file(name) else super().get(name)


SCHEDULES = _Schedules("schedule", "simulator.schedules", "Schedule", "schedules")
"""All schedules by name and alias: `SCHEDULES.get("1f1b")`; the user's own by path: `SCHEDULES.get("mine.csv")`."""
