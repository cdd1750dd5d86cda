"""Predictions against measurements in one picture: every point, and the errors of each group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.report.log_axis import label_log_axis
from simulator.report.picture import new_picture, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_accuracy"]

_COLOURS = (
    "#4e79a7",
    "#e15759",
    "#59a14f",
    "#f28e2b",
    "#b07aa1",
    "#76b7b2",
    "#9c755f",
    "#edc948",
    "#bab0ac",
    "#ff9da7",
)
_WIDEST = 52
_MOST_GROUPS = 40
_SHOWN_ERROR = 0.6


def plot_accuracy(
    groups: Sequence[str], measured: Sequence[float], predicted: Sequence[float], quantity: str, path: str | Path
) -> Path:
    """Draw predicted against measured (both axes logarithmic), and beside it the errors by group with their medians.

    Args:
        groups: source or log of each point.
        measured, predicted: positive, in the unit that the quantity names.
        quantity: what is measured, for the axes.
        path: a PNG file.

    Returns:
        The path.
    """
    names = list(dict.fromkeys(groups))
    shown = sorted(names, key=lambda name: -groups.count(name))[:_MOST_GROUPS]
    rows = [name for name in names if name in shown]
    figure = new_picture(path, 13.0, max(4.8, 1.6 + 0.24 * len(rows)), dpi=110)
    scatter, errors = figure.subplots(1, 2, width_ratios=(1.0, 1.0))
    x, y = np.asarray(measured, float), np.asarray(predicted, float)
    place = {name: number for number, name in enumerate(rows)}
    colours = [_COLOURS[place[g] % len(_COLOURS)] if g in place else "#808080" for g in groups]
    _draw_scatter(scatter, x, y, colours, quantity)
    _draw_errors(errors, rows, groups, y / x - 1.0)
    return save_picture(figure, path)


def _draw_scatter(
    axis: Axes, measured: NDArray[np.float64], predicted: NDArray[np.float64], colours: Sequence[str], quantity: str
) -> None:
    low, high = min(measured.min(), predicted.min()) / 1.2, max(measured.max(), predicted.max()) * 1.2
    line = np.array([low, high])
    axis.fill_between(line, line / 1.15, line * 1.15, color="#e8e8e8", label="within 15 %", lw=0)
    axis.plot(line, line, color="#a0a0a0", lw=0.8)
    axis.scatter(measured, predicted, s=9, c=colours, alpha=0.75, lw=0)
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for scale in (axis.xaxis, axis.yaxis):
        label_log_axis(scale, lambda value: f"{value:g}")
    axis.set_aspect("equal", anchor="N")
    axis.set_xlabel(f"measured {quantity}")
    axis.set_ylabel(f"predicted {quantity}")
    axis.legend(fontsize=8, loc="upper left", frameon=False)


def _draw_errors(axis: Axes, rows: Sequence[str], groups: Sequence[str], errors: NDArray[np.float64]) -> None:
    axis.axvspan(-0.15, 0.15, color="#e8e8e8", lw=0)
    axis.axvline(0.0, color="#a0a0a0", lw=0.8)
    for number, name in enumerate(rows):
        mine = np.array([e for e, group in zip(errors, groups, strict=True) if group == name])
        at = number + 0.5 * (np.linspace(-0.5, 0.5, len(mine)) if len(mine) > 1 else np.zeros(1))
        colour = _COLOURS[number % len(_COLOURS)]
        axis.scatter(np.clip(mine, -_SHOWN_ERROR, _SHOWN_ERROR), at, s=7, color=colour, alpha=0.6, lw=0)
        axis.plot([np.median(mine)] * 2, [number - 0.4, number + 0.4], color="#202020", lw=1.6)
    labels = [name if len(name) <= _WIDEST else name[: _WIDEST - 1] + "…" for name in rows]
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(-1.03 * _SHOWN_ERROR, 1.03 * _SHOWN_ERROR)
    axis.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f} %" if value else "0")
    axis.set_xlabel("error (bar: median of the group; points beyond the edge lie on it)")
