"""The points of a sweep as a picture: step time over the first setting, a line for every combination of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.report.log_axis import label_log_axis
from simulator.report.save_picture import save_picture

__all__ = ["plot_sweep"]

_MOST_LINES = 12


def plot_sweep(rows: Sequence[Mapping[str, Any]], fields: Sequence[str], path: str | Path, title: str = "") -> Path:
    """Draw the points that have a step time; those that do not fit are hollow.  The file's ending chooses the format.

    Args:
        rows: one per point: its settings, `step_time_s` and `fits`.
        fields: the settings that vary; the first is the horizontal axis.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=130, layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in formats:
        raise SpecError(
            f"a picture's file ending names its format, but {str(path)!r} has none of: {', '.join(sorted(formats))}"
        )
    drawn = [row for row in rows if row.get("step_time_s") is not None]
    if not drawn:
        raise SpecError("a picture of a sweep shows points that have a step time, but none has")
    across, *others = fields
    numbers = all(isinstance(row[across], int | float) and not isinstance(row[across], bool) for row in drawn)
    places = {str(value): place for place, value in enumerate(dict.fromkeys(str(row[across]) for row in drawn))}
    lines: dict[tuple[str, ...], list[tuple[float, float, bool]]] = {}
    for row in drawn:
        x = float(row[across]) if numbers else float(places[str(row[across])])
        group = tuple(f"{field.partition('.')[2]} {row[field]}" for field in others)
        lines.setdefault(group, []).append((x, float(row["step_time_s"]), bool(row.get("fits"))))
    axis = figure.subplots()
    for number, (group, points) in enumerate(lines.items()):
        points.sort()
        label = ", ".join(group) if number < _MOST_LINES else None
        (line,) = axis.plot([x for x, _, _ in points], [y for _, y, _ in points], "-", lw=1.2, alpha=0.8, label=label)
        for fits in (True, False):
            some = [(x, y) for x, y, good in points if good == fits]
            if some:
                face = line.get_color() if fits else "white"
                axis.plot(*zip(*some, strict=True), "o", ms=5, color=line.get_color(), mfc=face)
    if not numbers:
        axis.set_xticks(list(places.values()), list(places))
    axis.set_yscale("log")
    label_log_axis(axis.yaxis, lambda value: f"{value:g}")
    axis.set_xlabel(across)
    axis.set_ylabel("step [s]; hollow: does not fit")
    axis.grid(alpha=0.25, which="both")
    axis.spines[["top", "right"]].set_visible(False)
    if others:
        figure.legend(loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, weight="bold")
    return save_picture(figure, path)
