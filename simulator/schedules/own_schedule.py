"""The user's own order as a schedule: a path stands wherever the name of a schedule does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from simulator.errors import ProgramError, SpecError
from simulator.schedules.action import Cell
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.torch_csv import read_order_file_text
from simulator.specs import read_bytes

__all__ = ["is_order_file", "read_schedule", "schedule_of_text"]

LARGEST_FILE = 2**25
"""Bytes of the largest file that is read."""


def is_order_file(name: str) -> bool:
    """Return whether a name is the path of an order rather than the name of a schedule: it ends in .csv.

    >>> is_order_file("orders/mine.csv"), is_order_file("1f1b")
    (True, False)
    """
    return name.lower().endswith(".csv")


def read_schedule(path: str | Path) -> tuple[Schedule, Shape]:
    """Return the schedule of a file and its one shape; a file that has not changed since is read once.

    Raises:
        SpecError: the file is not there, no text, or too large.
        ProgramError: it holds no order, or one that breaks a rule; names the file, rank and cell.
        DeadlockError: its order cannot run; names who waits for which action of whom.
    """
    file = Path(path).expanduser()
    try:
        found = file.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{path}: a schedule that ends in .csv is a file with one line per rank: {reason}") from None
    return _read(str(file.resolve()), str(path), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=16)
def _read(file: str, name: str, changed: int, size: int) -> tuple[Schedule, Shape]:
    try:
        text = read_bytes(file, LARGEST_FILE, "text file with an order", place=name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{name}: an order is a text file (UTF-8): {error}") from None
    try:
        return schedule_of_text(text, name)
    except ProgramError as error:
        raise type(error)(f"{name}: {error}") from None


def schedule_of_text(text: str, title: str) -> tuple[Schedule, Shape]:
    """Return a schedule that has the order in `text`, and the one shape that it is for.

    Args:
        text: as in `read_order_file_text`.  Parts take equal time where no weight says otherwise.
        title: its name.

    Raises:
        ProgramError: the text is no order, or the order breaks a rule.
        DeadlockError: the order cannot run.

    >>> schedule, shape = schedule_of_text("0F0,0B0\\n1F0,1B0", "mine")
    >>> schedule.name, str(shape)
    ('mine', 'ranks=2, microbatches=1, chunks_per_rank=1')
    """
    own, where, size = read_order_file_text(text)

    class OwnSchedule(Schedule):
        """What one file holds; made here, so that the family of schedules does not list it."""

        name = title
        source = "the user's own file"
        splits_backward = bool((own.kind == 2).any())
        replicas = where.lanes

        def check(self, shape: Shape) -> None:
            if shape != size:
                raise self.refuse("an order from a file has the one shape that it was written for", shape, size)

        def placement(self, shape: Shape) -> Placement:
            self.check(shape)
            return where

        def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Cell]]:
            self.check(shape)
            return [iter(own.cells(rank)) for rank in range(own.ranks)]

        def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
            self.check(shape)
            return own

    return OwnSchedule(), size
