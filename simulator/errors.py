"""Every error a user can meet, as one tree.

    SimulatorError
    ├── SpecError           a file (or a value given in its place) is wrong
    │   └── UnknownNameError    a name nobody knows; the nearest known one is offered
    ├── PlanError           a split of the work that cannot be
    │   └── LayoutError         tensors that cannot lie on the ranks as a layout has them
    ├── ProgramError        the program breaks a rule of `program/spec.py`
    │   └── DeadlockError       no row can start any more
    └── CalibrationError    a log or a fit that cannot be trusted

A message says, in this order: the rule, the values, the place, the way out.  Out of memory is no error: it is the verdict
`fits = False`.  The command line turns each of these into one message and exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn

__all__ = [
    "FEW",
    "TYPING_SLIP",
    "CalibrationError",
    "DeadlockError",
    "LayoutError",
    "PlanError",
    "ProgramError",
    "SimulatorError",
    "SpecError",
    "UnknownNameError",
    "check_seed",
    "nearest",
    "nearest_few",
    "refuse",
    "shortened",
]


FEW = 12
"""So many names are shown all; of more the nearest three."""
TYPING_SLIP = 0.8
"""How like a key must be to one that is known before we say that it was meant: keys of other meaning share whole words."""


class SimulatorError(Exception):
    """Base of all errors whose cause is the input, never the simulator."""


class SpecError(SimulatorError):
    """A file, or a value in it, cannot be read: says file, line, path, what was read and what is allowed."""


class UnknownNameError(SpecError):
    """A name that no member of a family bears.

    Args:
        few: show the nearest three of those that are known, in place of all.
        meant: what to write in its place, when that is known better than by its letters.
        shown_by: the command that shows all; where they are many, it stands there beside the nearest three.
        aliases: other names of those that are known, offered but not shown.

    >>> print(UnknownNameError("schedule", "chimaera", ["gpipe", "chimera"]))
    no schedule 'chimaera'. Did you mean 'chimera'? Known: chimera, gpipe
    >>> print(UnknownNameError("rank", "w9", [f"rank{i}" for i in range(99)], shown_by="dtsim list ranks"))
    no rank 'w9'. Nearest: rank9, rank98, rank97; all: dtsim list ranks
    """

    def __init__(
        self,
        kind: str,
        name: str,
        known: Iterable[str],
        few: bool = False,
        meant: str = "",
        shown_by: str = "",
        aliases: Iterable[str] = (),
    ) -> None:
        names = sorted(known)
        guess = None if meant else nearest(name, [*names, *aliases], TYPING_SLIP if few else 0.6)
        hint = f" Did you mean {guess!r}?" if guess else f" Here: {meant}." if meant else ""
        shown = f"Known: {', '.join(names[:40]) or 'none'}" + (", ..." if len(names) > 40 else "")
        if few or (shown_by and len(names) > FEW):
            shown = f"Nearest: {', '.join(nearest_few(name, names))}" + (f"; all: {shown_by}" if shown_by else "")
        super().__init__(f"no {kind} {name!r}.{hint} {shown}")


class PlanError(SimulatorError):
    """A parallel plan that cannot run: says the rule, the values and the nearest plan that can."""


class LayoutError(PlanError):
    """A tensor cannot lie on the ranks as a layout has it; names the tensor, the dimension and the mesh axis."""


class GraphError(SimulatorError):
    """A layer's graph whose tensors do not fit together: a fault of a block. Says the operation, the tensor and the dimension."""


class ProgramError(SimulatorError):
    """A program that breaks a rule of the IR: a fault of a plug-in or of a hand-written order."""


class DeadlockError(ProgramError):
    """No row of the program can start: says who waits for whom."""


class CalibrationError(SimulatorError):
    """A measurement or a fit that cannot be used."""


def refuse(rule: str, values: str, way: str) -> NoReturn:
    """Refuse a plan.

    Args:
        rule: what holds of every plan that can run.
        values: those of this plan that break it.
        way: a plan that works.

    Raises:
        PlanError: always.
    """
    raise PlanError(f"{rule}, but {values}. Way out: {way}.")


def check_seed(seed: int) -> None:
    """Refuse what no generator of random numbers takes.

    Raises:
        SpecError: it is below 0, or too large.
    """
    if not 0 <= seed < 2**63:
        raise SpecError(f"a seed is a whole number from 0 to 2^63 - 1, but is {seed}")


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known name most like `name`, or None when none is as like as that (1 = the same).

    >>> nearest("chimaera", ["gpipe", "chimera"])
    'chimera'
    """
    lowered = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower()[:100], list(lowered), n=1, cutoff=likeness)
    return lowered[found[0]] if found else None


def nearest_few(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names most like `name`, whatever their distance.

    >>> nearest_few("chimaera", ["gpipe", "chimera", "zbv", "hanayo"], 2)
    ['chimera', 'hanayo']
    """
    return difflib.get_close_matches(name.lower()[:100], list(known), n=count, cutoff=0.0)


def shortened(text: str, most: int) -> str:
    """Return a text that is cut where nobody reads on.

    >>> shortened("a text", 6), shortened("a text", 5)
    ('a text', 'a ...')
    """
    return text if len(text) <= most else text[: most - 3] + "..."
