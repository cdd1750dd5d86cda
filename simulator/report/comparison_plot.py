"""Predictions side by side in one picture: time by account, bubble, memory by category."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.program.program import CATEGORIES
from simulator.report.bars import COLOURS
from simulator.report.prediction import Prediction
from simulator.units import GIB

__all__ = ["plot_comparison"]

_MEMORY_COLOURS = (
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#9c755f", "#bab0ac", "#d0d0d0",
)  # fmt: skip


def plot_comparison(named: Sequence[tuple[str, Prediction]], path: str | Path, title: str = "") -> Path:
    """Draw one row per (name, prediction) into a file; its ending chooses the format.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    from matplotlib.figure import Figure

    if not named:
        raise SpecError("a comparison draws at least one prediction, but none of the variants can be")
    figure = Figure(figsize=(14.0, 1.7 + 0.42 * len(named)), dpi=120, layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in formats:
        raise SpecError(
            f"a picture's file ending names its format, but {str(path)!r} has none of: {', '.join(sorted(formats))}"
        )
    time, bubble, memory = figure.subplots(1, 3, sharey=True, gridspec_kw={"width_ratios": [5, 2, 5]})
    predictions = [prediction for _, prediction in named]
    _stack(time, {name: [p.breakdown[name] for p in predictions] for name in predictions[0].breakdown}, COLOURS)
    for i, p in enumerate(predictions):
        time.plot([p.low, p.high], [i, i], color="#202020", lw=1.0, marker="|")
    time.set_xlabel("seconds per step, and the 80 % band")
    bubble.barh(range(len(named)), [100 * p.bubble_fraction for p in predictions], color="#b0b0b0", height=0.62)
    bubble.set_xlabel("bubble [%]")
    colours = dict(zip(CATEGORIES, _MEMORY_COLOURS, strict=True))
    tops = [p.memory.by_category[p.memory.fullest] / GIB for p in predictions]
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


def _stack(axis: Any, parts: dict[str, list[float]], colours: dict[str, str]) -> None:
    """Draw stacked bars; parts that are zero everywhere are left out."""
    left = [0.0] * len(next(iter(parts.values())))
    for name, values in parts.items():
        if any(values):
            axis.barh(range(len(values)), values, left=left, color=colours[name], label=name, height=0.62)
            left = [a + b for a, b in zip(left, values, strict=True)]
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, fontsize=7, frameon=False, handlelength=1.0)
    axis.spines[["top", "right"]].set_visible(False)
