"""Every error a user can meet, as one tree.

    SimulatorError
    ├── SpecError           a file (or a value given in its place) is wrong
    │   └── UnknownNameError    a name nobody knows; the nearest known one is offered
    ├── PlanError           a split of the work that cannot be
    ├── ProgramError        the program breaks a rule of `program/spec.py`
    │   └── DeadlockError       no row can start any more
    └── CalibrationError    a log or a fit that cannot be trusted

A message says, in this order: the rule, the values, the place, the way out.  Out of memory is no error: it is the verdict
`fits = False`.  The command line turns each of these into one message and exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CalibrationError",
    "DeadlockError",
    "PlanError",
    "ProgramError",
    "SimulatorError",
    "SpecError",
    "UnknownNameError",
    "nearest",
]


class SimulatorError(Exception):
    """Base of all errors whose cause is the input, never the simulator."""


class SpecError(SimulatorError):
    """A file, or a value in it, cannot be read: says file, line, path, what was read and what is allowed."""


class UnknownNameError(SpecError):
    """A name that no member of a family bears.

    >>> print(UnknownNameError("schedule", "chimaera", ["gpipe", "chimera"]))
    no schedule 'chimaera'. Did you mean 'chimera'? Known: chimera, gpipe
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        guess = nearest(name, names)
        hint = f" Did you mean {guess!r}?" if guess else ""
        shown = ", ".join(names[:40]) + (", ..." if len(names) > 40 else "")
        super().__init__(f"no {kind} {name!r}.{hint} Known: {shown or 'none'}")


class PlanError(SimulatorError):
    """A parallel plan that cannot run: says the rule, the values and the nearest plan that can."""


class ProgramError(SimulatorError):
    """A program that breaks a rule of the IR: a fault of a plug-in or of a hand-written order."""


class DeadlockError(ProgramError):
    """No row of the program can start: says who waits for whom."""


class CalibrationError(SimulatorError):
    """A measurement or a fit that cannot be used."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or None when none is close.

    >>> nearest("chimaera", ["gpipe", "chimera"])
    'chimera'
    """
    lowered = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower()[:100], list(lowered), n=1, cutoff=0.6)
    return lowered[found[0]] if found else None
