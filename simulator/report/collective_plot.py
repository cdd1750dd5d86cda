"""A collective over message sizes in one picture: time with its band, bus bandwidth, and who was chosen where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.report.log_axis import label_log_axis
from simulator.report.picture import new_picture, save_picture
from simulator.units import in_unit, show

__all__ = ["plot_collective"]

_COLOURS = ("#4e79a7", "#e15759", "#59a14f", "#f28e2b", "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#bab0ac")


def plot_collective(
    messages: Sequence[float],
    seconds: Sequence[float],
    bands: Sequence[tuple[float, float]],
    bus_bandwidths: Sequence[float],
    choices: Sequence[str],
    path: str | Path,
    title: str = "",
) -> Path:
    """Draw into a file; its ending chooses the format.

    Args:
        messages: sizes [B], ascending.
        seconds: times [s].
        bands: (low, high) [s].
        bus_bandwidths: [B/s].
        choices: algorithm and protocol of each size.
        path: the file.
        title: above the picture.

    Raises:
        SpecError: an ending that names no picture format.
    """
    figure = new_picture(path, 12.0, 4.8, dpi=120)
    time, bus = figure.subplots(1, 2)
    time.fill_between(
        messages, [low for low, _ in bands], [high for _, high in bands], color="#d0d0d0", label="80 % band"
    )
    time.plot(messages, seconds, color="#808080", lw=1.0)
    bus.plot(messages, [in_unit(rate, "GB/s", "B/s") for rate in bus_bandwidths], color="#808080", lw=1.0)
    for number, choice in enumerate(dict.fromkeys(choices)):
        chosen = [i for i, other in enumerate(choices) if other == choice]
        colour = _COLOURS[number % len(_COLOURS)]
        time.plot([messages[i] for i in chosen], [seconds[i] for i in chosen], "o", ms=4, color=colour, label=choice)
        rates = [in_unit(bus_bandwidths[i], "GB/s", "B/s") for i in chosen]
        bus.plot([messages[i] for i in chosen], rates, "o", ms=4, color=colour)
    for axis, label in ((time, "time"), (bus, "bus bandwidth [GB/s]")):
        axis.set_xscale("log", base=2)
        label_log_axis(axis.xaxis, lambda value: show(value, "B"), base=2)
        axis.set_xlabel("message")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    time.set_yscale("log")
    label_log_axis(time.yaxis, lambda value: show(value, "s"))
    handles, labels = time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=5, fontsize=8, frameon=False)
    bus.set_ylim(bottom=0.0)
    return save_picture(figure, path, title)
