"""What a choice of a plan costs in worlds that differ in one thing, as a tornado: the longest bar on top."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.errors import SpecError
from simulator.report.picture import new_picture, save_picture
from simulator.report.table import percent

__all__ = ["plot_tornado"]

_HOLDS, _CHANGES = "#2a78d6", "#d1495b"
_WIDE = 0.1
"""Of a wider axis the labels are whole per cent."""


def plot_tornado(
    worlds: Sequence[tuple[str, float, float | None]],
    now: float,
    path: str | Path,
    title: str = "",
    what: str = "step time",
) -> Path:
    """Draw the worlds into a file; its ending chooses the format.

    Args:
        worlds: (name, seconds of a step with its best plan, what keeping the plan costs over that as a part; None = it does not fit).
        now: seconds of a step with the plan chosen, as things are.
        what: is made least, where it is not the step time.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    if not worlds:
        raise SpecError("a tornado shows worlds in which some plan fits, but there is none")
    figure = new_picture(path, 8.0, 1.2 + 0.36 * len(worlds))
    axis = figure.subplots()
    ordered = sorted(worlds, key=lambda world: abs(world[1] / now - 1.0))
    for place, (_, best, regret) in enumerate(ordered):
        change = best / now - 1.0
        axis.barh(place, change, color=_HOLDS, height=0.55)
        if regret is None:
            axis.annotate(
                "the plan does not fit", (change, place), xytext=(4, -3), textcoords="offset points", fontsize=7
            )
        elif regret > 0:
            axis.barh(place, best / now * regret, left=change, color=_CHANGES, height=0.55)
    axis.set_yticks(range(len(ordered)), [name for name, _, _ in ordered])
    axis.axvline(0.0, color="#606060", lw=0.8)
    low, high = axis.get_xlim()
    digits = 0 if high - low > _WIDE else 1
    axis.xaxis.set_major_formatter(lambda value, _: percent(value, digits, signed=True))
    axis.set_xlabel(f"{what} beside today's\nblue: the best plan there, red: what keeping the plan adds")
    axis.grid(alpha=0.25, axis="x")
    axis.spines[["top", "right", "left"]].set_visible(False)
    return save_picture(figure, path, title)
