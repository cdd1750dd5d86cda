"""Predictions side by side in one picture: time by account, bubble, memory; timelines with time against memory; sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.program.program import CATEGORIES
from simulator.report.bars import COLOURS, KINDS, compute_bars, draw_bars, draw_columns, draw_numbers
from simulator.report.prediction import Prediction
from simulator.units import GIB, show

__all__ = ["plot_comparison", "plot_latency_sweep", "plot_schedules"]

_MEMORY_COLOURS = (
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#9c755f", "#bab0ac", "#d0d0d0",
)  # fmt: skip
_MOST_BARS = 40_000
"""More bars than this are drawn in columns."""
_SCATTER_HEIGHT = 3.5
"""Inches of time against memory."""


def plot_comparison(named: Sequence[tuple[str, Prediction]], path: str | Path, title: str = "") -> Path:
    """Draw one row per (name, prediction) into a file; its ending chooses the format.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    from matplotlib.figure import Figure

    if not named:
        raise SpecError("a comparison draws at least one prediction, but none of the variants can be")
    figure = Figure(figsize=(14.0, 1.7 + 0.42 * len(named)), dpi=120, layout="constrained")
    _check_format(figure, path)
    time, bubble, memory = figure.subplots(1, 3, sharey=True, gridspec_kw={"width_ratios": [5, 2, 5]})
    predictions = [prediction for _, prediction in named]
    _stack(time, {name: [p.breakdown[name] for p in predictions] for name in predictions[0].breakdown}, COLOURS)
    for i, p in enumerate(predictions):
        time.plot([p.low, p.high], [i, i], color="#202020", lw=1.0, marker="|")
    time.set_xlabel("seconds per step, and the 80 % band")
    bubble.barh(range(len(named)), [100 * p.bubble_fraction for p in predictions], color="#b0b0b0", height=0.62)
    bubble.set_xlabel("bubble [%]")
    bubble.spines[["top", "right"]].set_visible(False)
    colours = dict(zip(CATEGORIES, _MEMORY_COLOURS, strict=True))
    tops = [p.memory.by_category[p.fullest] / GIB for p in predictions]
    _stack(memory, {name: [float(top[i]) for top in tops] for i, name in enumerate(CATEGORIES)}, colours)
    for capacity in sorted({p.capacity for p in predictions}):
        memory.axvline(capacity / GIB, color="#b00020", ls="--", lw=1.2)
    memory.set_xlabel("memory of the fullest rank [GiB]; dashed: capacity")
    time.set_yticks(range(len(named)), [name for name, _ in named])
    time.invert_yaxis()
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    figure.savefig(path, facecolor="white")
    return Path(path)


def plot_schedules(named: Sequence[tuple[str, Prediction]], path: str | Path, title: str = "") -> Path:
    """Draw the timelines of (name, prediction) below one another on one scale, and beside them step time against memory.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not named:
        raise SpecError("a comparison draws at least one prediction, but none of the variants can be")
    heights = [min(3.0, max(0.8, 0.22 * p.program.ranks)) for _, p in named]
    figure = Figure(figsize=(11.0, max(3.2, sum(heights) + 0.45 * len(named))), dpi=150, layout="constrained")
    _check_format(figure, path)
    grid = figure.add_gridspec(len(named), 2, width_ratios=[3, 1.3], height_ratios=heights)
    longest = max(p.trace.makespan for _, p in named)
    seen: set[int] = set()
    for row, (name, p) in enumerate(named):
        axis = figure.add_subplot(grid[row, 0])
        bars = compute_bars(p.program, p.prices, p.trace)
        if len(bars.rank) > _MOST_BARS:
            draw_columns(axis, p.program.ranks, p.trace.makespan, (bars,))
        else:
            draw_bars(axis, p.program.ranks, p.trace.makespan, (bars,))
            draw_numbers(axis, bars, longest)
        seen |= {int(kind) for kind in set(bars.kind.tolist())}
        axis.set_xlim(0.0, longest)
        axis.set_ylim(p.program.ranks - 0.5, -0.5)
        axis.set_yticks([])
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_title(f"{row + 1}  {name}: {show(p.step_time, 's')}", loc="left", fontsize=9)
        axis.tick_params(labelbottom=row == len(named) - 1, labelsize=8)
    axis.set_xlabel("seconds", fontsize=9)
    kinds = sorted(seen | {KINDS.index("bubble")})
    handles = [Patch(facecolor=COLOURS[KINDS[kind]], label=KINDS[kind]) for kind in kinds]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8, frameon=False)
    rows = next((n for n in range(1, len(named)) if sum(heights[:n]) >= _SCATTER_HEIGHT), len(named))
    _draw_scatter(figure.add_subplot(grid[:rows, 1]), named)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, weight="bold")
    figure.savefig(path, facecolor="white")
    return Path(path)


def plot_latency_sweep(
    latencies: Sequence[float],
    bubbles: dict[str, Sequence[float]],
    turns: Sequence[float],
    path: str | Path,
    hop: float | None = None,
) -> Path:
    """Draw the bubble of schedules over the latency of a hop; dotted where the quickest changes, dashed where a job stands.

    Args:
        latencies: in forwards of one rank.
        bubbles: share of the time that is idle, by schedule.
        turns: latencies at which another schedule becomes the quickest.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    from matplotlib.figure import Figure

    if not bubbles:
        raise SpecError("a sweep draws at least one schedule, but none of those asked for can be")
    figure = Figure(figsize=(7.0, 4.5), dpi=150, layout="constrained")
    _check_format(figure, path)
    axis = figure.subplots()
    styles = ("-", "--", "-.", ":")
    for number, (name, values) in enumerate(bubbles.items()):
        axis.plot(latencies, [100 * v for v in values], styles[number // 10 % 4], marker="o", ms=3, label=name)
    for turn in turns:
        axis.axvline(turn, color="#606060", ls=":", lw=1.0)
    if hop is not None and hop <= max(latencies):
        axis.axvline(hop, color="#b00020", ls="--", lw=1.0, label="this job")
    axis.set_xlabel("latency of a hop, in the unit of the times")
    axis.set_ylabel("bubble [% of the time]")
    axis.set_ylim(bottom=0.0)
    axis.legend(fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, facecolor="white")
    return Path(path)


def _draw_scatter(axis: Any, named: Sequence[tuple[str, Prediction]]) -> None:
    """Step time against the memory of the fullest rank, numbered, with the capacity; hollow where it does not fit."""
    sides = ((5, 3), (-9, 3), (5, -9), (-9, -9))
    by_time = sorted(range(len(named)), key=lambda n: named[n][1].step_time)
    for turn, number in enumerate(by_time):
        p = named[number][1]
        at = p.peak_memory / GIB, p.step_time
        axis.scatter(*at, s=30, facecolor="#4e79a7" if p.fits else "none", edgecolor="#4e79a7")
        axis.annotate(str(number + 1), at, sides[turn % 4], textcoords="offset points", fontsize=8)
    most = max(p.peak_memory for _, p in named) / GIB
    for capacity in sorted({p.capacity / GIB for _, p in named}):
        if capacity <= 1.5 * most:
            axis.axvline(capacity, color="#b00020", ls="--", lw=1.0)
    axis.margins(0.25)
    axis.set_xlabel("fullest rank [GiB]", fontsize=9)
    axis.set_ylabel("step [s]", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _check_format(figure: Any, path: str | Path) -> None:
    formats = figure.canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in formats:
        raise SpecError(
            f"a picture's file ending names its format, but {str(path)!r} has none of: {', '.join(sorted(formats))}"
        )


def _stack(axis: Any, parts: dict[str, list[float]], colours: dict[str, str]) -> None:
    """Draw stacked bars; parts that are zero everywhere are left out."""
    left = [0.0] * len(next(iter(parts.values())))
    for name, values in parts.items():
        if any(values):
            axis.barh(range(len(values)), values, left=left, color=colours[name], label=name, height=0.62)
            left = [a + b for a, b in zip(left, values, strict=True)]
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, fontsize=7, frameon=False, handlelength=1.0)
    axis.spines[["top", "right"]].set_visible(False)
