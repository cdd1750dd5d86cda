"""Planners against one another: the best cost known over the number of evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.errors import SpecError
from simulator.report.log_axis import label_log_axis
from simulator.report.picture import new_picture, save_picture
from simulator.units import show

__all__ = ["plot_planners"]


def plot_planners(
    histories: Sequence[tuple[str, int, Sequence[tuple[int, float, float]]]],
    bound: float,
    unit: str,
    path: str | Path,
    title: str = "",
    objective: str = "cost",
) -> Path:
    """Draw a line of steps per planner, down to the lower bound; the file's ending chooses the format.

    Args:
        histories: planner, all its evaluations, and (evaluations, seconds, cost) whenever it knew something better.
        bound: that no plan goes below; 0 = none is drawn.
        unit: of costs.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    if not histories:
        raise SpecError("a picture of planners shows what they found, but none found anything")
    figure = new_picture(path, 8.5, 5.0)
    axis = figure.subplots()
    for number, (name, evaluations, history) in enumerate(histories):
        x = [max(one[0], 1) for one in history] + [max(evaluations, 1)]
        y = [one[2] for one in history] + [history[-1][2]]
        axis.plot(x, y, drawstyle="steps-post", color=f"C{number % 10}", lw=1.6, label=name)
        axis.plot(x[-1], y[-1], "o", ms=5, color=f"C{number % 10}")
    if bound > 0:
        axis.axhline(bound, color="#1b1b1b", lw=1.0, ls="--", label=f"no plan below {show(bound, unit)}")
    axis.set_xscale("log")
    label_log_axis(axis.xaxis, lambda value: f"{value:,.0f}")
    axis.set_yscale("log")
    label_log_axis(axis.yaxis, lambda value: show(value, unit))
    axis.margins(y=0.08)
    axis.set_xlabel("plans or parts of plans priced")
    axis.set_ylabel(f"best {objective} known")
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return save_picture(figure, path)
