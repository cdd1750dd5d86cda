"""Which part of a trace is one step: all of it, or a window in the steady state of steps that run into each other.

    rank 0   |...B3|......B7|......B11|....      m = 4: from the last backward of one middle step to that of the next
             step 0 |step 1 |step 2   |

With fewer microbatches than ranks, where a step is shorter than the pattern in which they repeat, the window holds as many
microbatches as there are ranks, and a step is its part of that (design: asynchronous schedules in the steady state).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.program.program import COMPUTE, Program
from simulator.program.trace import Trace

__all__ = ["StepWindow", "cut_trace", "step_window"]

_UPDATE = 4
"""The action of an update."""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """A window of a trace.

    Args:
        low, high: seconds from the start of the trace.
        steps: how many steps' worth of work it holds; 1, or p/m with fewer microbatches than ranks.
        whole: whether it is the whole trace, of one step.
    """

    low: float
    high: float
    steps: float = 1.0
    whole: bool = True

    @property
    def step_time(self) -> float:
        """Seconds per step."""
        return (self.high - self.low) / self.steps

    def ending(self, rows: NDArray[np.int32], trace: Trace) -> NDArray[np.int32]:
        """Return those of the rows that end within the window."""
        if self.whole:
            return rows
        return rows[(trace.end[rows] > self.low) & (trace.end[rows] <= self.high)]


def step_window(program: Program, trace: Trace) -> StepWindow:
    """Return the window of one step.

    Raises:
        ProgramError: a program of several steps, written by hand, in which these do not follow each other alike.

    >>> from simulator.program.builder import ProgramBuilder
    >>> step_window(ProgramBuilder().build(), Trace(start=np.zeros(0), end=np.zeros(0), engine="given"))
    StepWindow(low=0.0, high=0.0, steps=1.0, whole=True)
    """
    steps = int(program.step.max(initial=0)) + 1
    if steps == 1:
        return StepWindow(0.0, trace.makespan)
    own = np.flatnonzero((program.kind == COMPUTE) & (program.rank == 0) & (program.action != _UPDATE))
    known, place = np.unique(program.microbatch[own], return_inverse=True)
    ends = np.zeros(len(known))
    np.maximum.at(ends, place, trace.end[own])
    each, rest = divmod(len(ends), steps)
    if not each or rest:
        raise _unlike(f"rank 0 computes {len(ends)} microbatches in {steps} steps")
    first = steps // 2 * each - 1
    ranks = each if program.stages else dict(program.axes).get("pp", program.ranks)  # such steps are whole rounds
    held = each  # microbatches in the window
    if each >= ranks or (np.diff(program.step[own]) >= 0).all():
        ends = np.repeat(ends.reshape(steps, each).max(axis=1), each)  # a step's last backward, whichever it is of
    else:
        held = ranks
    if first + held >= len(ends):
        raise _unlike(f"{steps} steps of {each} hold fewer microbatches than the pattern of {ranks} ranks repeats in")
    low, high = float(ends[first]), float(ends[first + held])
    if high <= low > 0.0:
        raise _unlike(
            f"microbatch {first + held} ends at {high:.6g} s, microbatch {first} of an earlier step at {low:.6g} s"
        )
    return StepWindow(low, high, held / each, whole=False)


def _unlike(what: str) -> ProgramError:
    return ProgramError(
        f"steps of one program follow each other on rank 0, with as many microbatches in each, but {what}. "
        "Way out: number microbatches on from step to step, or write one step"
    )


def cut_trace(program: Program, trace: Trace) -> Trace:
    """Return the trace of one step's window alone, from 0; what lies outside has no length.

    Where the window is the whole trace, that is the trace itself.
    """
    window = step_window(program, trace)
    if window.whole:
        return trace
    start, end = (np.clip(times, window.low, window.high) - window.low for times in (trace.start, trace.end))
    return Trace(start=start, end=end, engine=trace.engine)
