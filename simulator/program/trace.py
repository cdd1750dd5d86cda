"""Trace: when every row of a program started and ended.  All pictures and numbers are drawn from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Trace"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Start and end [s] of each row.

    Args:
        start: [rows] seconds from the start of the step.
        end: [rows] seconds.
        engine: "compiled" or "simpy".
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    engine: str

    @property
    def makespan(self) -> float:
        """Time from 0 to the end of the last row [s]; 0 for an empty program."""
        return float(self.end.max()) if len(self.end) else 0.0
