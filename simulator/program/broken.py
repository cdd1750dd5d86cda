"""Words for a broken rule: which row it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.program.program import Program

__all__ = ["first_place", "refuse", "row_named"]


def row_named(program: Program, row: int) -> str:
    """Name a row in a message; careful, for the program may be broken."""
    try:
        return f"row {row} ({program.label(row)}) on rank {int(program.rank[row])}"
    except (IndexError, TypeError):
        return f"row {row}"


def first_place(wrong: NDArray[np.bool_]) -> int | None:
    """Return the first place where something is wrong, if any.

    >>> first_place(np.array([False, True, True])), first_place(np.array([False]))
    (1, None)
    """
    place = int(wrong.argmax()) if len(wrong) else 0
    return place if len(wrong) and wrong[place] else None


def refuse(program: Program, rows: NDArray[Any], wrong: NDArray[np.bool_], rule: str) -> None:
    """Raise the rule for the first of `rows` that is wrong, if any.

    Raises:
        ProgramError: the rule, and the row.
    """
    place = first_place(wrong)
    if place is not None:
        raise ProgramError(f"{rule}: {row_named(program, int(rows[place]))}")
