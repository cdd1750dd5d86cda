"""The plans of a search as a picture: time against memory, and the front of those that nothing beats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.errors import SpecError
from simulator.report.log_axis import label_log_axis
from simulator.report.picture import new_picture, save_picture
from simulator.report.table import percent
from simulator.units import in_unit

__all__ = ["plot_search"]

_FITS, _TOO_LARGE, _FRONT, _CHOSEN = "#2a78d6", "#b8b8b8", "#d1495b", "#1b1b1b"


def plot_search(
    points: Sequence[tuple[float, float, bool]],
    front: Sequence[tuple[float, float]],
    chosen: tuple[float, float] | None,
    capacity: float,
    path: str | Path,
    title: str = "",
    probability: float = 0.0,
) -> Path:
    """Draw simulated plans into a file; its ending chooses the format.

    Args:
        points: (seconds of a step, bytes on the fullest rank, whether it fits).
        front: the same of the plans that no other beats; by time.
        chosen: the plan taken.
        capacity: of the GPU [B].
        probability: with which a plan must fit to count as one that does; 0 = its prediction decides.

    Raises:
        SpecError: nothing to draw, or an ending that names no picture format.
    """
    if not points:
        raise SpecError("a picture of a search shows plans that were simulated, but none was")
    figure = new_picture(path, 9.0, 5.4)
    axis = figure.subplots()
    sure = percent(probability, 0)
    words = (f"fits with less than {sure}", f"fits with {sure} or more") if probability else ("does not fit", "fits")
    for fits, colour, label in ((False, _TOO_LARGE, words[0]), (True, _FITS, words[1])):
        some = [(seconds, in_unit(size, "GiB", "B")) for seconds, size, good in points if good == fits]
        if some:
            axis.plot(
                *zip(*some, strict=True),
                "o",
                ms=4,
                color=colour,
                alpha=0.7,
                label=f"{label}: {len(some):,}",
                mec="none",
            )
    if front:
        axis.plot(
            [seconds for seconds, _ in front], [in_unit(size, "GiB", "B") for _, size in front], "-", drawstyle="steps-post",
            color=_FRONT, lw=1.4, label="fits, and no other of these is quicker and smaller",
        )  # fmt: skip
    if chosen:
        axis.plot(chosen[0], in_unit(chosen[1], "GiB", "B"), "*", ms=15, color=_CHOSEN, label="chosen")
    axis.axhline(in_unit(capacity, "GiB", "B"), color="#808080", ls="--", lw=1.0)
    axis.annotate(
        "memory of the GPU", (1.0, in_unit(capacity, "GiB", "B")), xycoords=("axes fraction", "data"), xytext=(-4, 4),
        textcoords="offset points", ha="right", fontsize=8, color="#606060",
    )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    for each in (axis.xaxis, axis.yaxis):
        label_log_axis(each, lambda value: f"{value:g}")
    axis.set_xlabel("step [s]")
    axis.set_ylabel("fullest rank [GiB]")
    axis.grid(alpha=0.25, which="both")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    return save_picture(figure, path, title)
