"""Schedules as a paper shows them: timelines below one another on one scale, and step time against memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import SpecError
from simulator.report.bars import Bars, compute_bars, draw_bars, draw_columns, draw_numbers, link_bars, patches_of
from simulator.report.comparison_plot import cut_at, short_name
from simulator.report.log_axis import label_log_axis
from simulator.report.picture import new_picture, save_picture
from simulator.report.prediction import Prediction
from simulator.units import GIB, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_schedules"]

_ONE_COLUMN = 6
"""More timelines than this stand in two columns, with time against memory below them."""
_NARROW = 25
"""More bars than this per inch are too narrow to draw one by one."""
_SCATTER_HEIGHT = 3.5
"""Inches of time against memory."""


def plot_schedules(named: Sequence[tuple[str, Prediction]], path: str | Path, title: str = "") -> Path:
    """Draw the timelines of (name, prediction) on one scale, and step time against memory, beside or below them.

    A timeline much longer than most is cut.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    if not named:
        raise SpecError("a comparison draws at least one prediction, but none of the variants can be")
    columns = 1 if len(named) <= _ONE_COLUMN else 2
    rows = -(-len(named) // columns)
    band = max(min(3.0, max(0.8, 0.22 * p.program.ranks)) for _, p in named) / columns
    height = rows * (band + 0.4) + (0.6 if columns == 1 else 0.9 + _SCATTER_HEIGHT)
    figure = new_picture(path, 11.0, max(height, 3.4), dpi=150)
    if columns == 1:
        grid = figure.add_gridspec(rows, 2, width_ratios=[3, 1.3])
        beside = grid[:, 1]
    else:
        grid = figure.add_gridspec(rows + 1, 2, height_ratios=[band] * rows + [_SCATTER_HEIGHT])
        beside = grid[rows, :]
    limit = cut_at([p.step_time for _, p in named])
    drawn: list[Bars] = []
    for number, (name, p) in enumerate(named):
        row, column = number % rows, number // rows
        axis = figure.add_subplot(grid[row, column])
        drawn.extend(_draw_timeline(axis, p, limit, 11.0 * (0.62 if columns == 1 else 0.47)))
        cut = ", cut" if p.step_time > limit else ""
        axis.set_title(
            f"{number + 1}  {short_name(name)}: {show(p.step_time, 's')}{cut}", loc="left", fontsize=9, pad=3
        )
        last = row == rows - 1 or number == len(named) - 1
        axis.tick_params(labelbottom=last, labelsize=8)
        axis.set_xlabel("seconds" if last else "", fontsize=9)
    told = patches_of(drawn)
    figure.legend(handles=told, loc="outside lower left", ncols=min(len(told), 6), fontsize=8, frameon=False)
    scatter = figure.add_subplot(beside)
    if columns == 1 and rows > 2:
        scatter.set_box_aspect(1.0)
        scatter.set_anchor("N")
    _draw_scatter(scatter, named)
    return save_picture(figure, path, title)


def _draw_timeline(axis: Axes, p: Prediction, limit: float, width: float) -> tuple[Bars, ...]:
    """Draw the step of a prediction; returns its bars.

    Args:
        axis: what is drawn on.
        p: the prediction.
        limit: end of the axis [s].
        width: of the axis [inches].
    """
    trace, ranks = p.step_trace, p.program.ranks
    bars = compute_bars(p.program, p.prices, trace)
    groups = (bars, link_bars(p.program, trace))
    axis.set_xlim(0.0, limit)
    axis.set_ylim(ranks - 0.5, -0.5)
    if len(bars.rank) > _NARROW * width * ranks:
        draw_columns(axis, ranks, trace.makespan, groups)
        axis.set_xlim(0.0, limit)
    else:
        draw_bars(axis, ranks, trace.makespan, groups)
        draw_numbers(axis, bars, limit * 11.5 / width)
    axis.set_yticks([])
    axis.spines[["top", "right", "left"]].set_visible(False)
    return groups


def _draw_scatter(axis: Axes, named: Sequence[tuple[str, Prediction]]) -> None:
    """Step time against the memory of the fullest rank, numbered, with the capacity; hollow where it does not fit."""

    sides = ((5, 3), (-9, 3), (5, -9), (-9, -9), (-2, 7), (-2, -12))
    by_time = sorted(range(len(named)), key=lambda n: named[n][1].step_time)
    for turn, number in enumerate(by_time):
        p = named[number][1]
        at = p.peak_memory / GIB, p.step_time
        axis.scatter(*at, s=26, facecolor="#4e79a7" if p.fits else "none", edgecolor="#4e79a7")
        axis.annotate(str(number + 1), at, sides[turn % len(sides)], textcoords="offset points", fontsize=8)
    memories, times = [p.peak_memory / GIB for _, p in named], [p.step_time for _, p in named]
    for capacity in sorted({p.capacity / GIB for _, p in named}):
        if capacity <= 1.5 * max(memories):
            axis.axvline(capacity, color="#b00020", ls="--", lw=1.0)
    for scale, limits, values in ((axis.set_xscale, axis.xaxis, memories), (axis.set_yscale, axis.yaxis, times)):
        if max(values) > 3.0 * min(values):
            scale("log")
            label_log_axis(limits, lambda value: f"{value:g}")
    axis.margins(0.12)
    axis.set_xlabel("fullest rank [GiB]; dashed: capacity", fontsize=9)
    axis.set_ylabel("step [s]", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(color="#ececec", lw=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
