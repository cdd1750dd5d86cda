"""A run as a picture: the middle run's progress and stops, where the time of all goes, and the tornado of levers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simulator.goodput.answer import Goodput
from simulator.goodput.readable import Phase, trace_run
from simulator.goodput.run_model import Floats
from simulator.html.page import page_html, picture_html
from simulator.report.picture import new_picture, save_picture
from simulator.report.table import percent, sections_html
from simulator.specs import write_text
from simulator.units import in_unit

__all__ = ["plot_goodput", "write_goodput_page"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "run": "#7db7e8",
    "checkpoint": "#3a9e86",
    "detection": "#7f7f7f",
    "restart": "#f0a04b",
    "rework": "#a3195b",
    "slow": "#8a7a00",
    "repair": "#5b3a29",
    "maintenance": "#8d6cab",
}
_COLUMNS = 160
_MOST_LEVERS = 12
_GAIN, _LOSS = "#1f4e79", "#c1571a"


def plot_goodput(found: Goodput, path: str | Path) -> Path:
    """Draw an answer into a file; its ending chooses the format.

    Raises:
        SpecError: the ending names no picture format.
    """
    figure = new_picture(path, 11.0, 7.4)
    wide = bool(found.levers)
    grid = figure.add_gridspec(2, 2 if wide else 1, height_ratios=(1.0, 1.0))
    _draw_run(figure.add_subplot(grid[0, :]), found)
    _draw_time(figure.add_subplot(grid[1, 0]), found)
    if wide:
        _draw_levers(figure.add_subplot(grid[1, 1]), found)
    good = found.runs.goodput
    figure.suptitle(
        f"{found.job.name}: goodput {percent(float(good.mean()))}, mean of {len(found.runs):,} runs", x=0.01, ha="left",
        fontsize=11, weight="bold",
    )  # fmt: skip
    return save_picture(figure, path)


def write_goodput_page(found: Goodput, path: str | Path) -> Path:
    """Write an answer as one HTML file, its picture inside.

    Raises:
        OSError: the file cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        picture = plot_goodput(found, Path(folder) / "run.png")
        first, *others = found.sections()
        shown = picture_html("a run, time lost" + (", and levers" if found.levers else ""), picture)
        body = (sections_html([first]), shown, f'<div class="columns">\n{sections_html(others)}\n</div>')
    write_text(path, page_html(f"{found.job.name}: a run", body))
    return Path(path)


def _draw_run(axis: Axes, found: Goodput) -> None:
    """The run of median length: a column per stretch of time, filled by what it was spent on; above it the work that lasts."""
    wall = found.runs.wall
    middle = int(np.argsort(found.runs.goodput, kind="stable")[len(wall) // 2])
    phases = trace_run(found.runs.model, found.seed, middle)
    end = phases[-1].end
    edges = np.linspace(0.0, end, _COLUMNS + 1)
    days = np.array([in_unit(float(t), "d", "s") for t in edges])
    bottom, width = np.zeros(_COLUMNS), days[1] - days[0]
    lost = _lost_again(phases)
    for name, colour in _COLOURS.items():
        spans = [(p.start, p.end) for p in phases if p.account == name] if name != "rework" else lost
        if not spans:
            continue
        part = _coverage(edges, np.array(spans))
        if name == "run":
            part = np.maximum(part - _coverage(edges, np.array(lost)), 0.0) if lost else part
        axis.bar(days[:-1], part, width, bottom, align="edge", color=colour, linewidth=0, label=name)
        bottom += part
    axis.set(xlim=(0.0, days[-1]), ylim=(0.0, 1.0), xlabel="days", ylabel="part of the time")
    axis.set_title(f"the run of median goodput (number {middle})", loc="left", fontsize=9)
    axis.legend(fontsize=8, frameon=False, ncols=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), columnspacing=1.0)
    axis.spines[["top", "right"]].set_visible(False)


def _lost_again(phases: list[Phase]) -> list[tuple[float, float]]:
    """Stretches of training whose work a later failure undid."""
    out = []
    least = float("inf")
    for phase in reversed(phases):
        if phase.account == "run" and phase.after > least:
            share = (phase.after - max(least, phase.before)) / (phase.after - phase.before)
            out.append((phase.end - share * (phase.end - phase.start), phase.end))
        least = min(least, phase.before)
    return out[::-1]


def _coverage(edges: Floats, spans: Floats) -> Floats:
    """Part of each interval between edges that stretches of time cover; they do not overlap."""
    moments = spans.reshape(-1)
    covered = np.concatenate([[0.0], np.cumsum(np.diff(moments) * (np.arange(len(moments) - 1) % 2 == 0))])
    passed = np.interp(edges, moments, covered, left=0.0, right=covered[-1])
    out: Floats = np.diff(passed) / np.diff(edges)
    return out


def _draw_time(axis: Axes, found: Goodput) -> None:
    """Lost time by account, mean over all runs, with the failures that cost most."""
    wall = float(found.runs.wall.mean())
    parts = {name: seconds / wall for name, seconds in found.lost.items() if seconds > 0.0}
    names = sorted(parts, key=lambda name: parts[name])
    axis.barh(names, [100 * parts[name] for name in names], color=[_COLOURS[name] for name in names])
    for place, name in enumerate(names):
        axis.text(100 * parts[name], place, f" {percent(parts[name], 2)}", va="center", fontsize=8)
    axis.set_xlim(0.0, 118 * max(parts.values(), default=1.0))
    if not parts:
        why = "" if found.job.reliability else ": the job has no [reliability], so nothing fails"
        axis.text(0.5, 0.5, f"nothing is lost in these runs{why}", transform=axis.transAxes, ha="center")
        axis.set(xticks=[], yticks=[])
    axis.set_title("time lost, mean over runs [% of all]", loc="left", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_levers(axis: Axes, found: Goodput) -> None:
    """What single changes would buy, largest on top."""
    levers = found.levers[:_MOST_LEVERS][::-1]
    saves = [in_unit(lever.saves, "d", "s") for lever in levers]
    axis.barh(range(len(levers)), saves, color=[_GAIN if days >= 0 else _LOSS for days in saves])
    axis.set_yticks(range(len(levers)), [f"{lever.name} {lever.change}" for lever in levers], fontsize=8)
    axis.axvline(0.0, color="#404040", lw=0.8)
    axis.set_title("days that single changes would save", loc="left", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
