"""A schedule of the user's own as Python code: FILE.py with one subclass of `Schedule`, executed only where its user asks for it.

Files are data here, and data is never executed: a job that names FILE.py as its schedule is refused.  Code runs when its
path is given to the program itself, on the command line or by `run_schedule_file`; from then on it is known by that path.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from pathlib import Path
from typing import TypeVar

from simulator.errors import SimulatorError, SpecError
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_check import check_order
from simulator.schedules.order_waits import check_order_runs
from simulator.schedules.placement import Placement
from simulator.specs import read_bytes

__all__ = ["blame", "is_code_file", "known_schedule_file", "run_schedule_file"]

Made = TypeVar("Made")
_LARGEST_FILE = 2**20
_RUN: dict[str, Schedule] = {}
"""Schedules of files that were executed, by their real path."""


def is_code_file(name: str) -> bool:
    """Return whether a name is the path of a schedule as code: it ends in .py.

    >>> is_code_file("mine.py"), is_code_file("mine.csv")
    (True, False)
    """
    return name.lower().endswith(".py")


def known_schedule_file(path: str) -> Schedule:
    """Return the schedule of a file that was executed before.

    Raises:
        SpecError: it was not.
    """
    found = _RUN.get(os.path.realpath(os.path.expanduser(path)))
    if found is None:
        raise SpecError(
            f"schedule {path!r} is code, and nothing that a file names is executed. Way out: name it on the command line "
            f"(dtsim schedule {path}, --schedule {path}, --set plan.schedule={path}), or write its order as a CSV"
        )
    return found


def run_schedule_file(path: str) -> Schedule:
    """Execute a file of the user's own and return the one schedule that it defines.

    Raises:
        SpecError: no such file, its code fails, or it defines no schedule or several.
    """
    file = os.path.realpath(os.path.expanduser(path))
    if file in _RUN:
        return _RUN[file]
    read_bytes(file, _LARGEST_FILE, "Python file with a schedule", place=path)
    name = f"_schedule_of_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SimulatorError:
        raise
    except Exception as error:  # whatever the user's own code raises
        line = _line_of(error, file)
        raise SpecError(f"{path}{line}: the code of this schedule fails: {type(error).__name__}: {error}") from error
    found = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Schedule) and not inspect.isabstract(cls) and cls.__module__ == name
    ]
    if len(found) != 1:
        raise SpecError(
            f"{path}: expected one class that subclasses simulator.schedules.Schedule and has all its methods, found {len(found)}"
        )
    _RUN[file] = _checked(found[0], path)
    return _RUN[file]


def _checked(cls: type[Schedule], path: str) -> Schedule:
    """Return a schedule of a class that nobody reviewed, under the name by which it is asked for: every order is checked."""

    class Checked(cls):  # type: ignore[misc, valid-type]
        name = path

        def placement(self, shape: Shape) -> Placement:
            made: Placement = _made("placement", super().placement(shape), Placement, path)
            return made

        def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
            found: PipelineOrder = _made("order", super().order(shape, placement), PipelineOrder, path)
            check_order(found, placement, shape.microbatches)
            check_order_runs(found)
            return found

    return Checked()


def _made(method: str, value: Made, kind: type[Made], path: str) -> Made:
    """What a method of the user's made, if it is of its kind."""
    if not isinstance(value, kind):
        raise SpecError(f"{path}: {method} returns a {kind.__name__}, but it returned {type(value).__name__}")
    return value


def blame(error: BaseException) -> str | None:
    """Return what to say of an error that came through a schedule that was executed; None where it did not."""
    for file, schedule in _RUN.items():
        if line := _line_of(error, file):
            return f"{schedule.name}{line}: the code of this schedule fails: {type(error).__name__}: {error}"
    return None


def _line_of(error: BaseException, file: str) -> str:
    """The last line of the user's file that an error came through; "" where it did not."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f", line {error.lineno}"
    lines, at = [], error.__traceback__
    while at is not None:
        if os.path.realpath(at.tb_frame.f_code.co_filename) == file:
            lines.append(at.tb_lineno)
        at = at.tb_next
    return f", line {lines[-1]}" if lines else ""
