"""Scaling curves as a picture: tokens per second against the ideal, and efficiency, over the number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.errors import SpecError
from simulator.report.log_axis import label_log_axis
from simulator.report.picture import new_picture, save_picture
from simulator.units import show

__all__ = ["plot_scaling"]


def plot_scaling(
    curves: Sequence[tuple[str, Sequence[tuple[int, float, float, bool]]]], path: str | Path, title: str = ""
) -> Path:
    """Draw curves into a file; its ending chooses the format.

    Args:
        curves: (name, points); a point is (GPUs, tokens per second, efficiency, whether it fits).

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    drawn = [(name, points) for name, points in curves if points]
    if not drawn:
        raise SpecError("scaling draws at least one point, but none of those asked for can be")
    figure = new_picture(path, 11.0, 4.6)
    rate, efficiency = figure.subplots(1, 2)
    ticks = sorted({gpus for _, points in drawn for gpus, *_ in points})
    for number, (name, points) in enumerate(drawn):
        colour = f"C{number % 10}"
        style = ("-", "--", "-.", ":")[number // 10 % 4]
        gpus = [point[0] for point in points]
        rate.plot(gpus, [point[1] for point in points], style, color=colour, label=name)
        first = points[0]
        rate.plot(gpus, [first[1] / first[0] * n for n in gpus], ":", color=colour, lw=0.9, alpha=0.7)
        efficiency.plot(gpus, [100 * point[2] for point in points], style, color=colour, label=name)
        for n, tokens, part, fits in points:
            face = colour if fits else "white"
            rate.plot(n, tokens, "o", color=colour, mfc=face, ms=5)
            efficiency.plot(n, 100 * part, "o", color=colour, mfc=face, ms=5)
    rate.set_yscale("log")
    label_log_axis(rate.yaxis, lambda value: show(value, "").strip())
    rate.set_ylabel("tokens per second; dotted: in proportion to the GPUs")
    efficiency.set_ylabel("tokens per second and GPU, % of the first point")
    efficiency.set_ylim(0.0, max(105.0, *(102 * point[2] for _, points in drawn for point in points)))
    efficiency.axhline(100.0, color="#808080", lw=0.8, ls=":")
    for axis in (rate, efficiency):
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=45 if len(ticks) > 7 else 0)
        axis.minorticks_off()
        axis.set_xlabel("GPUs; hollow: does not fit")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    if len(drawn) > 1 or drawn[0][0] != "as it is":
        handles, labels = efficiency.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    return save_picture(figure, path, title)
