"""The step as text: one line per rank, drawn from the trace alone.

    rank 0 |0123......aa4bb5cc6dd7ee.ff.gg.hh|
    rank 1 |.012....aa3bb4cc5dd6ee7ff.gg.hh..|
    rank 2 |..01..aa2bb3cc4dd5ee6ff7gg.hh....|
    rank 3 |...0aa1bb2cc3dd4ee5ff6gg7hh......|

A digit is the forward of that microbatch, a letter its backward (a = 0, b = 1, ...); of a split backward the input half
is a small letter, the weight half a capital.  With more than ten microbatches only the last digit shows: 13 is 3 and d.
^ is an update, # another computation, a dot means that the rank computes nothing.

A column is `unit` seconds and shows what runs in its middle.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.program.program import COMPUTE, Program
from simulator.program.trace import Trace
from simulator.units import show

__all__ = ["render_timeline"]

_IDLE, _UPDATE, _OTHER = ".", "^", "#"
_FIRST = {0: "0", 1: "a", 2: "a", 3: "A"}
"""Symbol of microbatch 0 by action: F, B, I, W."""
_NARROWEST = 10


def render_timeline(program: Program, trace: Trace, unit: float | None = None, width: int | None = 160) -> str:
    """Return the timeline of the compute streams as text.

    Args:
        program: what ran.
        trace: when it ran.
        unit: seconds per column; by default the shortest compute row.
        width: most characters of a line (None: no limit).  A wider picture is drawn with a coarser unit, a whole
            multiple of the one wanted, and a last line says so.

    Raises:
        ProgramError: the unit is not above zero.

    >>> from simulator.program.builder import ProgramBuilder, plain_segment
    >>> build = ProgramBuilder()
    >>> stream, layer = build.add_stream(build.add_rank()), build.add_item(plain_segment("layer"))
    >>> forward, backward = (build.add_row(layer, stream, action=kind, microbatch=0) for kind in (0, 1))
    >>> trace = Trace(start=np.array([0.0, 2.0]), end=np.array([1.0, 4.0]), engine="given")
    >>> print(render_timeline(build.build(), trace))
    rank 0 |0.aa|
    """
    rows = np.flatnonzero(program.kind == COMPUTE)
    lengths = trace.end[rows] - trace.start[rows]
    lengths = lengths[lengths > 0.0]
    if unit is not None and not (math.isfinite(unit) and unit > 0.0):
        raise ProgramError(
            f"a column of a timeline lasts a time above zero, but unit = {unit}; leave it out for the default"
        )
    wanted = unit if unit is not None else float(lengths.min()) if len(lengths) else trace.makespan or 1.0
    digits = len(str(program.ranks - 1))
    columns = _columns(trace.makespan, wanted)
    room = columns if width is None else max(width - len("rank  ||") - digits, _NARROWEST)
    factor = max(1, math.ceil(columns / room))
    columns = _columns(trace.makespan, factor * wanted)
    symbols = _symbols(program, rows)
    middles: NDArray[np.float64] = np.arange(0.5, columns, dtype=np.float64) * (factor * wanted)
    lines = []
    for rank in range(program.ranks):
        own = program.rank[rows] == rank
        lines.append(f"rank {rank:>{digits}} |{_line(trace, rows[own], symbols[own], middles)}|")
    if factor > 1:
        base = "shortest row" if unit is None else "unit"
        lines.append(
            f"one column = {show(factor * wanted, 's')}, {factor} times the {base} ({show(wanted, 's')}), to fit "
            f"{width} characters; what runs between two column middles does not show"
        )
    return "\n".join(lines)


def _columns(makespan: float, unit: float) -> int:
    """Columns that cover the makespan; rounding errors add none."""
    return math.ceil(makespan / unit * (1.0 - 2.0**-30) - 2.0**-30)


def _symbols(program: Program, rows: NDArray[np.intp]) -> NDArray[np.str_]:
    """One character per compute row."""
    action, microbatch = program.action[rows], program.microbatch[rows]
    shift = np.where(microbatch >= 0, microbatch, 0)
    if len(shift) and shift[(action >= 0) & (action <= 3)].max(initial=0) >= 10:
        shift = shift % 10
    code = np.full(len(rows), ord(_OTHER), np.int32)
    code[action == 4] = ord(_UPDATE)
    for kind, first in _FIRST.items():
        code = np.where(action == kind, ord(first) + shift, code).astype(np.int32)
    return code.view("<U1")


def _line(trace: Trace, rows: NDArray[np.intp], symbols: NDArray[np.str_], middles: NDArray[np.float64]) -> str:
    """The line of one rank: what runs in the middle of each column."""
    real = trace.end[rows] > trace.start[rows]
    rows, symbols = rows[real], symbols[real]
    if not len(rows):
        return _IDLE * len(middles)
    order = np.argsort(trace.start[rows], kind="stable")
    rows, symbols = rows[order], symbols[order]
    latest = np.searchsorted(trace.start[rows], middles, side="right") - 1
    runs = (latest >= 0) & (trace.end[rows][latest] > middles)
    return "".join(np.where(runs, symbols[latest], _IDLE))
