"""Schedules in abstract time as a picture: timelines below one another on one scale, and what ranks hold over time.

Of one schedule every rank's activations are drawn, of several those of the rank that holds most.  One much longer than most is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.errors import SpecError
from simulator.program.program import Program
from simulator.program.trace import Trace
from simulator.report.comparison_plot import end_of
from simulator.report.memory import memory_peaks, memory_timeline
from simulator.report.picture import save_picture
from simulator.report.plots import band_height, draw_runs, legend_rows, legend_under, round_times, stacked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_abstract"]

_MEMORY_HEIGHT = 2.4
"""Inches."""
_LINE = 0.16
"""Inches of a line of the legend."""
_MOST_NAMED = 12
"""Ranks that the legend names."""
_STYLES = ("-", "--", "-.", ":")


def plot_abstract(runs: Sequence[tuple[str, Program, Trace]], path: str | Path) -> Path:
    """Draw (title, program, trace) of schedules alone into a file; its ending chooses the format.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    if not runs:
        raise SpecError("a picture of schedules needs at least one, but none of those asked for can be")
    heights = [*(band_height(program) for _, program, _ in runs), _MEMORY_HEIGHT]
    figure, axes = stacked(path, heights, 0.6 * len(heights) + 1.0)
    told = draw_runs(axes, runs, unit="")
    rows = _draw_memory(axes[-1], runs, end_of([trace.makespan for _, _, trace in runs]))
    figure.set_figheight(figure.get_figheight() + _LINE * (rows - 1))
    legend_under(figure, axes[-2], told, 8.0)
    return save_picture(figure, path)


def _draw_memory(axis: Axes, runs: Sequence[tuple[str, Program, Trace]], limit: float) -> int:
    """Activations over time, in microbatches on a rank's share; returns how many lines the legend takes."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    names = _apart([title for title, _, _ in runs])
    lines = [
        (name if len(runs) > 1 else f"rank {rank}", *memory_timeline(program, trace, rank))
        for name, (_, program, trace) in zip(names, runs, strict=True)
        for rank in ([int(np.argmax(memory_peaks(program, trace).total))] if len(runs) > 1 else range(program.ranks))
    ]
    curves: dict[bytes, tuple[list[str], Any, Any]] = {}  # those of several ranks are often one
    for label, times, levels in lines:
        held = levels.sum(axis=1)
        curves.setdefault(times.tobytes() + held.tobytes(), ([], times, held))[0].append(label)
    highest = 0.0
    most = len(curves) if len(runs) > 1 else min(len(curves), _MOST_NAMED)
    named = set(np.linspace(0, len(curves) - 1, most).round().astype(int).tolist())
    for number, (labels, times, held) in enumerate(curves.values()):
        highest = max(highest, float(held.max()))
        if len(runs) > 1:
            colour: object = f"C{number % 10}"
        else:
            colour = colormaps["viridis"](0.92 * number / max(len(curves) - 1, 1))
        axis.step(
            np.append(times, max(limit, float(times[-1]))),
            np.append(held, held[-1]),
            where="post",
            color=colour,
            ls=_STYLES[number // 10 % len(_STYLES)],
            lw=1.2,
            label=_joined(labels) if number in named else None,
        )
    axis.set_xlim(0.0, limit)
    axis.set_ylim(0.0, 1.1 * highest or 1.0)
    round_times(axis)
    axis.yaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
    axis.set_ylabel("activations\n[microbatches]")
    axis.set_xlabel("time, in the unit of the times given")
    what = "activations of the fullest rank" if len(runs) > 1 else "activations of every rank"
    axis.set_title(what, loc="left", fontsize=11, weight="bold")
    axis.grid(axis="y", color="#e4e4e4", lw=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    handles = axis.get_legend_handles_labels()[0]
    legend_under(axis.figure, axis, handles, 34.0)
    return legend_rows(handles)


def _apart(titles: Sequence[str]) -> list[str]:
    """Titles without the parts that all of them have.

    >>> _apart(["gpipe, 4 ranks", "zbv, 4 ranks, 2 chunks"]), _apart(["gpipe, 4 ranks"] * 2)
    (['gpipe', 'zbv, 2 chunks'], ['gpipe, 4 ranks', 'gpipe, 4 ranks'])
    """
    parts = [title.split(", ") for title in titles]
    told = [", ".join(part for part in own if not all(part in other for other in parts)) for own in parts]
    return told if all(told) else list(titles)


def _joined(labels: Sequence[str]) -> str:
    """What one curve is called that is that of several.

    >>> _joined(["rank 0", "rank 3"])
    'rank 0, 3'
    >>> _joined(["breadth_first, 2 chunks", "looped_bfs, 2 chunks"])
    'breadth_first; looped_bfs, 2 chunks'
    """
    if all(label.startswith("rank ") for label in labels):
        return "rank " + ", ".join(label.removeprefix("rank ") for label in labels)
    heads, ends = zip(*((head, end) for head, _, end in (label.partition(", ") for label in labels)), strict=True)
    if len(set(ends)) == 1 and ends[0]:
        return f"{'; '.join(heads)}, {ends[0]}"
    return "; ".join(labels)
