"""The step as a picture: what every rank does when, how full it is, and where the time goes.

Each rank has a band: its compute stream on top (bubbles stay light grey), below it one thin strip per kind of
communication.  Everything is drawn from the trace.  Few bars are drawn one by one, with the number of their microbatch
where it fits.  Too many to see are drawn in columns instead: the kinds that run in a column's time are stacked, each as
high as its share of that time.

matplotlib is imported only when something is drawn, and never its global state (`pyplot`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.errors import SpecError
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.trace import Trace
from simulator.report.bars import (
    BAR_MIDDLE,
    COLOURS,
    COLUMNS,
    compute_bars,
    draw_bars,
    draw_columns,
    draw_numbers,
    kind_words,
    link_bars,
    patches_of,
)
from simulator.report.breakdown import breakdown, mean_breakdown
from simulator.report.comparison_plot import end_of
from simulator.report.memory import memory_timeline
from simulator.report.picture import new_picture, save_picture
from simulator.report.table import percent
from simulator.report.window import cut_trace, step_window
from simulator.units import GIB, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

__all__ = [
    "COLOURS",
    "band_height",
    "draw_runs",
    "draw_timeline",
    "legend_rows",
    "legend_under",
    "plot_prediction",
    "plot_timelines",
    "round_times",
    "stacked",
]

_GAP = 0.75
"""Inches between axes."""

_LEGEND_WIDTH = 860.0
"""Points that a legend may be wide, of a picture of 13 inches."""
_MOST_BARS = 40_000
"""More bars than this are drawn in columns."""


def plot_prediction(
    program: Program,
    prices: Prices,
    trace: Trace,
    path: str | Path,
    title: str | None = None,
    capacity: float | None = None,
) -> Path:
    """Draw timeline, memory and breakdown of one step into a file; its ending chooses the format (png, svg, pdf).

    Of steps that run into each other the window of one in the steady state is drawn.

    Args:
        program: what ran.
        prices: seconds by account, for the recomputed share of a backward and the breakdown.
        trace: when it ran.
        path: file to write.
        title: a line above the picture; by default the program's name and its step time.
        capacity: bytes of memory of a GPU, drawn as a dashed line.

    Returns:
        The path.

    Raises:
        SpecError: a file ending that names no picture format.
    """
    window = step_window(program, trace)
    table = breakdown(program, prices, trace, None if window.whole else (window.low, window.high))
    trace = cut_trace(program, trace)
    remembers = bool(program.resident or program.effects)
    band = band_height(program)
    heights = [band, *([2.1] if remembers else []), 0.55]
    figure, axes = stacked(path, heights, _GAP * len(heights) + (1.2 if remembers else 0.85))
    top = axes[0]
    handles = draw_timeline(top, program, trace, prices)
    top.set_title(
        title or f"{program.name}: {show(window.step_time, 's')} per step", loc="left", fontsize=12, weight="bold"
    )
    if remembers:
        _draw_memory(axes[1], program, trace, capacity)
        top.tick_params(labelbottom=False)
        top.set_xlabel("")
    legend_under(figure, top, handles, 8.0 if remembers else 34.0)
    _draw_breakdown(axes[-1], mean_breakdown(program, table))
    return save_picture(figure, path)


def plot_timelines(runs: Iterable[tuple[str, Program, Trace]], path: str | Path) -> Path:
    """Draw the timelines of several (title, program, trace) below one another, on one scale of time; return the path.

    A timeline much longer than most is cut.

    Raises:
        SpecError: nothing to draw, or a file ending that names no picture format.
    """
    pictures = list(runs)
    if not pictures:
        raise SpecError("a comparison needs at least one (title, program, trace); got none")
    figure, axes = stacked(path, [band_height(program) for _, program, _ in pictures], _GAP * len(pictures) + 0.5)
    legend_under(figure, axes[-1], draw_runs(axes, pictures), 34.0)
    return save_picture(figure, path)


def draw_runs(axes: Sequence[Axes], runs: Sequence[tuple[str, Program, Trace]], unit: str = "s") -> list[Any]:
    """Draw the timelines of (title, program, trace) on one scale, which the last axis alone bears; returns what a legend tells.

    Args:
        axes: one for each run, or one more.
        unit: of time; "" in abstract time.
    """
    limit = end_of([trace.makespan for _, _, trace in runs])
    told: dict[str, Any] = {}
    for axis, (title, program, trace) in zip(axes, runs, strict=False):
        told |= {handle.get_label(): handle for handle in draw_timeline(axis, program, trace, None, limit, unit)}
        took = show(trace.makespan, unit) if unit else f"makespan {trace.makespan:g}"
        cut = ", cut" if trace.makespan > limit else ""
        axis.set_title(f"{title}: {took}{cut}", loc="left", fontsize=11, weight="bold")
    for axis in axes[:-1]:
        axis.tick_params(labelbottom=False)
        axis.set_xlabel("")
    return list(told.values())


def band_height(program: Program) -> float:
    """Inches for the timeline of a program."""
    return float(np.clip(0.42 * program.ranks, 0.9, 8.0))


def stacked(path: str | Path, heights: Sequence[float], spare: float) -> tuple[Figure, Any]:
    """Return a figure of axes of these heights below one another, and the axes; `spare`: inches for titles and legends."""
    figure = new_picture(path, 13.0, sum(heights) + spare, dpi=120)
    grid = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": list(heights)})
    return figure, grid[:, 0]


def round_times(axis: Axes) -> None:
    """Let the axis of time bear round numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10]))


def draw_timeline(
    axis: Axes, program: Program, trace: Trace, prices: Prices | None, until: float | None = None, unit: str = "s"
) -> list[Any]:
    """Draw the bands of all ranks up to a time; returns what a legend tells.  `unit` of the axis: "" in abstract time."""
    from matplotlib.ticker import EngFormatter

    limit = until or trace.makespan or 1.0
    groups = (compute_bars(program, prices, trace), link_bars(program, trace))
    axis.set_xlim(0.0, limit)
    axis.set_ylim(program.ranks - 0.5, -0.5)
    if sum(len(bars.rank) for bars in groups) > _MOST_BARS:
        draw_columns(axis, program.ranks, trace.makespan, groups)
    else:
        draw_bars(axis, program.ranks, trace.makespan, groups)
        draw_numbers(axis, groups[0], limit)
    labelled = np.arange(0, program.ranks, 2 ** max(0, math.ceil(math.log2(program.ranks / 24))))
    axis.set_yticks(labelled + BAR_MIDDLE, [f"rank {rank}" for rank in labelled])
    round_times(axis)
    if unit:
        axis.xaxis.set_major_formatter(EngFormatter(unit=unit))
    axis.set_xlabel("time")
    axis.tick_params(axis="y", length=0, labelsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)
    return patches_of(groups)


def legend_under(figure: Figure | SubFigure, axis: Axes, handles: Sequence[Any], points: float) -> None:
    """A legend so many points below an axis, never over data or title, nor wider than the picture."""
    from matplotlib.transforms import ScaledTranslation

    below = axis.transAxes + ScaledTranslation(0.0, -points / 72.0, figure.dpi_scale_trans)
    look = {"fontsize": 8, "frameon": False, "handlelength": 1.2, "columnspacing": 1.2, "borderaxespad": 0.0}
    axis.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        bbox_transform=below,
        ncols=_beside(handles),
        **look,
    )


def _beside(handles: Sequence[Any]) -> int:
    """How many entries of a legend stand beside each other."""
    widths = [26.0 + 4.7 * len(handle.get_label()) for handle in handles]
    for columns in range(len(widths), 1, -1):
        if sum(float(max(part)) for part in np.array_split(widths, columns)) <= _LEGEND_WIDTH:
            return columns
    return 1


def legend_rows(handles: Sequence[Any]) -> int:
    """How many lines a legend under an axis takes."""
    return -(-len(handles) // _beside(handles))


def _draw_memory(axis: Axes, program: Program, trace: Trace, capacity: float | None) -> None:
    """Total memory of every rank over time; where there are more changes than pixels, the highest of each pixel."""
    from matplotlib import colormaps
    from matplotlib.ticker import EngFormatter

    edges = np.linspace(0.0, trace.makespan, COLUMNS + 1)
    named = set(np.linspace(0, program.ranks - 1, min(program.ranks, 8)).round().astype(int).tolist())
    highest = 0.0
    for rank in range(program.ranks):
        times, levels = memory_timeline(program, trace, rank, capacity or math.inf)
        total = levels.sum(axis=1) / GIB
        highest = max(highest, float(total.max()))
        if len(times) > COLUMNS:
            column = np.searchsorted(times, edges[:-1], side="right") - 1
            times, total = edges[:-1], np.maximum(np.maximum.reduceat(total, column), total[column])
        colour = colormaps["viridis"](0.92 * rank / max(program.ranks - 1, 1))
        label = f"rank {rank}" if rank in named else None
        line = (np.append(times, trace.makespan), np.append(total, total[-1]))
        axis.step(*line, where="post", color=colour, lw=1.1, label=label)
    if capacity is not None:
        axis.axhline(capacity / GIB, color="#b00020", ls="--", lw=1.2, label=f"capacity {show(capacity, 'B')}")
    axis.set_xlim(0.0, trace.makespan or 1.0)
    axis.set_ylim(0.0, 1.1 * max(highest, (capacity or 0.0) / GIB) or 1.0)
    axis.set_ylabel("memory [GiB]")
    axis.set_xlabel("time")
    round_times(axis)
    axis.xaxis.set_major_formatter(EngFormatter(unit="s"))
    axis.grid(axis="y", color="#e4e4e4", lw=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    legend_under(axis.figure, axis, axis.get_legend_handles_labels()[0], 34.0)


def _draw_breakdown(axis: Axes, mean: dict[str, float]) -> None:
    """One bar: the parts of the step, mean over all ranks."""
    total = sum(mean.values()) or 1.0
    left, narrow = 0.0, []
    axis.set_xlim(0.0, 1.0)
    axis.set_axis_off()
    for name, seconds in mean.items():
        part = seconds / total
        if part <= 0.0:
            continue
        (bar,) = axis.barh(0, part, left=left, height=1.0, color=COLOURS[name], edgecolor="white", lw=0.6)
        words = kind_words(name)
        if part > 0.045 and _LEGEND_WIDTH * part > 5.0 * len(words) + 4.0:
            dark = name not in ("bubble", "forward", "backward")
            colour = "white" if dark else "#202020"
            axis.text(
                left + part / 2, 0, f"{words}\n{percent(part)}", ha="center", va="center", fontsize=8, color=colour
            )
        else:
            bar.set_label(f"{words} {percent(part, 2)}")
            narrow.append(bar)
        left += part
    axis.set_title("where the time goes, mean over ranks", loc="left", fontsize=9)
    if narrow:
        legend_under(axis.figure, axis, narrow, 4.0)
