"""Predictions side by side in one picture: time by account, bubble, memory; sweeps of a latency."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from simulator.errors import SpecError
from simulator.program.program import CATEGORIES
from simulator.report.bars import COLOURS, kind_words
from simulator.report.picture import new_picture, save_picture
from simulator.report.prediction import Prediction
from simulator.units import GIB, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MEMORY_COLOURS", "cut_at", "end_of", "plot_comparison", "plot_latency_sweep", "short_name"]

MEMORY_COLOURS = (
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#9c755f", "#bab0ac", "#d0d0d0",
)  # fmt: skip
"""Colours of the categories of memory, in their order."""
_NAME = 36
"""Characters of a row's name that stand on one line."""
_FAR = 2.0
"""Bars this many times as long as the median are cut, so that the others can be told apart."""


def plot_comparison(named: Sequence[tuple[str, Prediction]], path: str | Path, title: str = "") -> Path:
    """Draw one row per (name, prediction) into a file; its ending chooses the format.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    if not named:
        raise SpecError("a comparison draws at least one prediction, but none of the variants can be")
    names = [fill(short_name(name), _NAME) for name, _ in named]
    lines = max(name.count("\n") for name in names)
    figure = new_picture(path, 14.0, 1.7 + (0.42 + 0.13 * lines) * len(named), dpi=120)
    predictions = [prediction for _, prediction in named]
    bubbles = [100 * p.bubble_fraction for p in predictions]
    widths = [5, 2, 5] if any(bubbles) else [5, 5]
    time, *bubble, memory = figure.subplots(1, len(widths), sharey=True, gridspec_kw={"width_ratios": widths})
    _stack(time, {name: [p.breakdown[name] for p in predictions] for name in predictions[0].breakdown}, COLOURS)
    most = cut_at([p.high for p in predictions])
    for i, p in enumerate(predictions):
        time.plot([p.low, p.high], [i, i], color="#202020", lw=1.0, marker="|")
        far = p.high > most
        place = (
            {"xy": (most, i), "xytext": (-3, 0), "ha": "right", "color": "white"}
            if far
            else {"xy": (p.high, i), "xytext": (5, 0)}
        )
        box = {"facecolor": "#202020", "edgecolor": "none", "pad": 1.5} if far else None
        time.annotate(
            show(p.step_time, "s"),
            textcoords="offset points",
            va="center",
            fontsize=7,
            bbox=box,
            annotation_clip=False,
            **place,
        )
    time.set_xlim(0.0, most)
    time.set_ylim(-0.6, len(named) - 0.4)
    time.set_xlabel("seconds per step, and the 80 % band")
    for panel in bubble:
        panel.barh(range(len(named)), bubbles, color="#b0b0b0", height=0.62)
        panel.set_xlim(0.0, 1.05 * max(bubbles))
        panel.set_xlabel("bubble [%]")
        panel.spines[["top", "right"]].set_visible(False)
    colours = dict(zip(CATEGORIES, MEMORY_COLOURS, strict=True))
    tops = [p.memory.by_category[p.fullest] / GIB for p in predictions]
    _stack(memory, {name: [float(top[i]) for top in tops] for i, name in enumerate(CATEGORIES)}, colours)
    for capacity in sorted({p.capacity for p in predictions}):
        memory.axvline(capacity / GIB, color="#b00020", ls="--", lw=1.2)
    memory.set_xlabel("memory of the fullest rank [GiB]; dashed: capacity")
    time.set_yticks(range(len(named)), [fill(short_name(name), _NAME) for name, _ in named], fontsize=8)
    time.invert_yaxis()
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    return save_picture(figure, path)


def short_name(name: str) -> str:
    """Return the name of a variant as a picture bears it.

    >>> short_name("schedule zbv (chunks_per_rank 2)")
    'zbv, 2 chunks'
    """
    return re.sub(r" \(chunks_per_rank (\d+)\)$", _chunks, name.removeprefix("schedule "))


def _chunks(found: re.Match[str]) -> str:
    return f", {found[1]} chunk" + ("" if found[1] == "1" else "s")


def cut_at(lengths: Sequence[float]) -> float:
    """Return where an axis ends: beyond the longest, or at a multiple of the median where some are much longer than most.

    >>> cut_at([1.0, 2.0]), cut_at([1.0, 1.0, 1.0, 9.0])
    (2.24, 2.0)
    """
    longest, middle = max(lengths), sorted(lengths)[len(lengths) // 2]
    return 1.12 * longest if longest <= _FAR * middle else _FAR * middle


def end_of(lengths: Sequence[float]) -> float:
    """Return where a scale ends that timelines of these lengths share: with the longest, unless it is much longer than most.

    >>> end_of([1.0, 2.0]), end_of([1.0, 1.0, 1.0, 9.0])
    (2.0, 2.0)
    """
    return min(max(lengths), cut_at(lengths)) or 1.0


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
    if not bubbles:
        raise SpecError("a sweep draws at least one schedule, but none of those asked for can be")
    figure = new_picture(path, 8.6, max(4.5, 0.21 * len(bubbles) + 0.6), dpi=150)
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
    axis.set_title("idle time as messages take longer", loc="left", fontsize=11, weight="bold")
    axis.set_ylim(0.0, 106 * max(max(values) for values in bubbles.values()) or 1.0)
    handles, labels = axis.get_legend_handles_labels()
    last = {name: values[-1] for name, values in bubbles.items()}
    by_end = sorted(range(len(labels)), key=lambda n: -last.get(labels[n], -1.0))  # as the curves end, from the top
    outside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "fontsize": 8, "frameon": False}
    axis.legend([handles[n] for n in by_end], [labels[n] for n in by_end], **outside)
    axis.spines[["top", "right"]].set_visible(False)
    return save_picture(figure, path)


def _stack(axis: Axes, parts: dict[str, list[float]], colours: dict[str, str]) -> None:
    """Draw stacked bars; parts that are zero everywhere are left out."""
    left = [0.0] * len(next(iter(parts.values())))
    for name, values in parts.items():
        if any(values):
            axis.barh(
                range(len(values)),
                values,
                left=left,
                color=colours[name],
                label=kind_words(name).replace("_", " "),
                height=0.62,
            )
            left = [a + b for a, b in zip(left, values, strict=True)]
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, fontsize=7, frameon=False, handlelength=1.0)
    axis.spines[["top", "right"]].set_visible(False)
