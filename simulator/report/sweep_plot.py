"""The points of a sweep as a picture: step time over the first setting, a line for every combination of the others.

Few lines have a colour each; many that of the setting which tells most of them apart.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.aliases import short
from simulator.errors import SpecError
from simulator.report.log_axis import label_log_axis
from simulator.report.picture import new_picture, save_picture

__all__ = ["plot_sweep"]

_MOST_LINES = 12
"""That have a colour each."""
_NEAREST = 0.08
"""Values this part of the axis apart have labels of their own."""
_WIDE = 130
"""Characters beside each other in a legend."""
Group = tuple[str, ...]
Lines = dict[Group, list[tuple[float, float, bool]]]


def plot_sweep(rows: Sequence[Mapping[str, Any]], fields: Sequence[str], path: str | Path, title: str = "") -> Path:
    """Draw the points that have a step time; those that do not fit are hollow.  The file's ending chooses the format.

    Args:
        rows: one per point: its settings, `step_time_s` and `fits`.
        fields: the settings that vary; the first is the horizontal axis.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    figure = new_picture(path, 8.0, 5.0)
    drawn = [row for row in rows if row.get("step_time_s") is not None]
    if not drawn:
        raise SpecError("a picture of a sweep shows points that have a step time, but none has")
    across, *others = fields
    numbers = all(isinstance(row[across], int | float) and not isinstance(row[across], bool) for row in drawn)
    places = {str(value): place for place, value in enumerate(dict.fromkeys(str(row[across]) for row in drawn))}
    lines: Lines = {}
    for row in drawn:
        x = float(row[across]) if numbers else float(places[str(row[across])])
        group = tuple(f"{short(field)} {row[field]}" for field in others)
        lines.setdefault(group, []).append((x, float(row["step_time_s"]), bool(row.get("fits"))))
    axis = figure.subplots()
    named: dict[str, str] = {}
    by = None if len(lines) <= _MOST_LINES else _tells_most(lines)
    for group, points in lines.items():
        points.sort()
        label = ", ".join(group) if by is None else group[by]
        colour = named.get(label, f"C{len(named) % 10}")
        (line,) = axis.plot(
            [x for x, _, _ in points], [y for _, y, _ in points], "-", lw=1.2, alpha=0.8, color=colour,
            label=None if label in named else label,
        )  # fmt: skip
        named[label] = colour
        for fits in (True, False):
            some = [(x, y) for x, y, good in points if good == fits]
            if some:
                face = line.get_color() if fits else "white"
                axis.plot(*zip(*some, strict=True), "o", ms=5, color=line.get_color(), mfc=face)
    if not numbers:
        axis.set_xticks(list(places.values()), list(places))
    elif _apart(values := sorted({float(row[across]) for row in drawn})):
        axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.set_yscale("log")
    label_log_axis(axis.yaxis, lambda value: f"{value:g}")
    axis.set_xlabel(across)
    axis.set_ylabel("step [s]; hollow: does not fit")
    axis.grid(alpha=0.25, which="both")
    axis.spines[["top", "right"]].set_visible(False)
    if others:
        fit = max(1, min(4, _WIDE // (6 + max(map(len, named)))))
        figure.legend(loc="outside lower left", ncols=fit, fontsize=8, frameon=False)
    return save_picture(figure, path, title)


def _apart(values: Sequence[float]) -> bool:
    """Whether a label under each value has room."""
    near = min((b - a for a, b in itertools.pairwise(values)), default=math.inf)
    return near >= _NEAREST * (values[-1] - values[0])


def _tells_most(lines: Lines) -> int:
    """Which of the settings that lines have explains most of how far they are apart (between groups, at each place)."""
    across: dict[float, list[tuple[Group, float]]] = defaultdict(list)
    for group, points in lines.items():
        for x, seconds, _ in points:
            across[x].append((group, math.log(seconds)))

    def between(setting: int) -> float:
        total = 0.0
        for some in across.values():
            mean = sum(y for _, y in some) / len(some)
            parts = defaultdict(list)
            for group, y in some:
                parts[group[setting]].append(y)
            total += sum(len(part) * (sum(part) / len(part) - mean) ** 2 for part in parts.values())
        return total

    return max(range(len(next(iter(lines)))), key=between)
