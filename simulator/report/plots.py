"""The step as a picture: what every rank does when, how full it is, and where the time goes.

Each rank has a band: its compute stream on top (bubbles stay light grey), below it one thin strip per kind of
communication.  Everything is drawn from the trace.  Few bars are drawn one by one, with the number of their microbatch where
it fits; many are drawn as an image, each pixel mixed from the colours of what runs within it.

matplotlib is imported only when something is drawn, and never its global state (`pyplot`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SpecError
from simulator.program.prices import ACCOUNTS, Prices
from simulator.program.program import COMPUTE, Link, Program, Segment
from simulator.program.trace import Trace
from simulator.report.breakdown import breakdown, mean_breakdown
from simulator.report.memory import memory_timeline
from simulator.units import GIB, show

__all__ = ["COLOURS", "plot_prediction", "plot_timelines"]

COLOURS = {
    "forward": "#7db7e8",
    "backward": "#f0a04b",
    "weight gradient": "#c1571a",
    "recompute": "#3a9e86",
    "optimizer": "#8d6cab",
    "host": "#7f7f7f",
    "tp": "#a3195b",
    "cp": "#c879b2",
    "ep": "#5b3a29",
    "dp": "#8a7a00",
    "pp": "#1f4e79",
    "bubble": "#ececec",
}
"""Colour of each kind of bar; told apart also with red-green blindness and, mostly, in grey."""

_KINDS = tuple(COLOURS)
_OF_ACTION = {0: "forward", 1: "backward", 2: "backward", 3: "weight gradient", 4: "optimizer"}
_MOST_BARS, _MOST_NUMBERS = 12_000, 1_500
_PIXELS, _LINES = 2_400, 40
"""Columns of a dense picture, and image lines per rank."""
_TOP, _BOTTOM, _FOOT = -0.42, 0.20, 0.44
"""Edges of a rank's band: top and bottom of the compute bar, bottom of the strips; its middle is the rank number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bars:
    """Rectangles: rank, kind (index into _KINDS), start and end [s], band edges, number to print or -1."""

    rank: NDArray[np.int32]
    kind: NDArray[np.int8]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    top: NDArray[np.float64]
    bottom: NDArray[np.float64]
    number: NDArray[np.int32]


def plot_prediction(
    program: Program,
    prices: Prices,
    trace: Trace,
    path: str | Path,
    title: str | None = None,
    capacity: float | None = None,
) -> Path:
    """Draw timeline, memory and breakdown of one step into a file; its ending chooses the format (png, svg, pdf).

    Args:
        program: what ran.
        prices: seconds by account, for the recomputed share of a backward and the breakdown.
        trace: when it ran.
        path: file to write.
        title: a line above the picture; by default the program's name and its step time.
        capacity: bytes of memory of a GPU, drawn as a dashed line.

    Returns:
        The path.

    Raises:
        SpecError: a file ending that names no picture format.
    """
    remembers = bool(program.resident or program.effects)
    band = _band_height(program)
    heights = [band, *([2.1] if remembers else []), 0.55]
    figure, axes = _figure(heights, path)
    top = axes[0]
    _draw_timeline(top, program, trace, prices)
    top.set_title(title or f"{program.name}: {show(trace.makespan, 's')} per step", loc="left", fontsize=12, weight="bold")
    if remembers:
        _draw_memory(axes[1], program, trace, capacity)
        top.tick_params(labelbottom=False)
        top.set_xlabel("")
    _draw_breakdown(axes[-1], mean_breakdown(program, breakdown(program, prices, trace)))
    return _save(figure, path)


def plot_timelines(runs: Iterable[tuple[str, Program, Trace]], path: str | Path) -> Path:
    """Draw the timelines of several (title, program, trace) below one another, on one scale of time; return the path.

    Raises:
        SpecError: nothing to draw, or a file ending that names no picture format.
    """
    pictures = list(runs)
    if not pictures:
        raise SpecError("a comparison needs at least one (title, program, trace); got none")
    figure, axes = _figure([_band_height(program) for _, program, _ in pictures], path)
    longest = max(trace.makespan for _, _, trace in pictures)
    for axis, (title, program, trace) in zip(axes, pictures, strict=True):
        _draw_timeline(axis, program, trace, None, longest)
        axis.set_title(f"{title}: {show(trace.makespan, 's')}", loc="left", fontsize=11, weight="bold")
    for axis in axes[:-1]:
        axis.tick_params(labelbottom=False)
        axis.set_xlabel("")
    return _save(figure, path)


def _band_height(program: Program) -> float:
    """Inches for the timeline of a program."""
    return float(np.clip(0.42 * program.ranks, 0.9, 8.0))


def _figure(heights: Sequence[float], path: str | Path) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, sum(heights) + 0.75 * len(heights) + 0.3), dpi=120, layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in formats:
        raise SpecError(
            f"a picture's file ending names its format, but {str(path)!r} ends in {Path(path).suffix!r}. "
            f"Use one of: {', '.join(sorted(formats))}."
        )
    grid = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": list(heights)})
    return figure, grid[:, 0]


def _save(figure: Any, path: str | Path) -> Path:
    figure.savefig(path, facecolor="white")
    return Path(path)


def _compute_bars(program: Program, prices: Prices | None, trace: Trace) -> _Bars:
    """One bar per compute row, two where it begins with recomputation."""
    rows = np.flatnonzero(program.kind == COMPUTE)
    of_item = [_KINDS.index(item.phase) if isinstance(item, Segment) else 0 for item in program.items]
    kind = np.array(of_item, np.int8)[program.item[rows]]
    for action, name in _OF_ACTION.items():
        kind[program.action[rows] == action] = _KINDS.index(name)
    start, end = trace.start[rows], trace.end[rows]
    share = np.zeros(len(rows))
    if prices is not None:
        total = prices.account.sum(axis=1)
        part = prices.account[:, ACCOUNTS.index("recompute")] / np.where(total > 0.0, total, 1.0)
        share = part[program.item[rows]]
    again = share > 0.0
    middle = start + share * (end - start)
    rank = program.rank[rows]
    number = np.where(program.action[rows] < 4, program.microbatch[rows], -1)
    count = len(rows) + int(again.sum())
    return _Bars(
        rank=np.concatenate([rank, rank[again]]),
        kind=np.concatenate([kind, np.full(int(again.sum()), _KINDS.index("recompute"), np.int8)]),
        start=np.concatenate([middle, start[again]]),
        end=np.concatenate([end, middle[again]]),
        top=np.full(count, _TOP),
        bottom=np.full(count, _BOTTOM),
        number=np.concatenate([number, np.full(int(again.sum()), -1)]).astype(np.int32),
    )


def _link_bars(program: Program, trace: Trace) -> _Bars:
    """One thin bar per link row and rank that takes part, in the strip of its account."""
    account = np.array([_KINDS.index(i.account) if isinstance(i, Link) else -1 for i in program.items], np.int8)
    owner = program.row_of_stream_entry
    entries = np.flatnonzero(account[program.item[owner]] >= 0) if len(account) else np.zeros(0, np.intp)
    rows = owner[entries]
    kind = account[program.item[rows]]
    used = np.unique(kind)
    height = min((_FOOT - _BOTTOM) / max(len(used), 1), 0.12)
    top = _BOTTOM + 0.02 + height * np.searchsorted(used, kind)
    return _Bars(
        rank=program.stream_rank[program.streams[entries]],
        kind=kind,
        start=trace.start[rows],
        end=trace.end[rows],
        top=top,
        bottom=top + 0.85 * height,
        number=np.full(len(rows), -1, np.int32),
    )


def _draw_timeline(axis: Any, program: Program, trace: Trace, prices: Prices | None, until: float | None = None) -> None:
    from matplotlib.patches import Patch
    from matplotlib.ticker import EngFormatter, MaxNLocator

    limit = until or trace.makespan or 1.0
    groups = (_compute_bars(program, prices, trace), _link_bars(program, trace))
    axis.set_xlim(0.0, limit)
    axis.set_ylim(program.ranks - 0.5, -0.5)
    if sum(len(bars.rank) for bars in groups) > _MOST_BARS:
        _draw_image(axis, program.ranks, trace.makespan, groups)
    else:
        idle = np.arange(program.ranks)
        axis.barh(idle + (_TOP + _BOTTOM) / 2, trace.makespan, height=_BOTTOM - _TOP, color=COLOURS["bubble"], lw=0, zorder=0)
        for bars in groups:
            _draw_bars(axis, bars)
        _draw_numbers(axis, groups[0], limit)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=24, integer=True, steps=[1, 2, 4, 8, 10]))
    axis.yaxis.set_major_formatter(lambda rank, _: f"rank {rank:.0f}" if 0 <= rank < program.ranks else "")
    axis.xaxis.set_major_formatter(EngFormatter(unit="s"))
    axis.set_xlabel("time")
    axis.tick_params(axis="y", length=0, labelsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)
    seen = sorted({int(k) for bars in groups for k in np.unique(bars.kind)} | {_KINDS.index("bubble")})
    patches = [Patch(facecolor=COLOURS[_KINDS[k]], label=_KINDS[k]) for k in seen]
    axis.legend(handles=patches, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(patches), fontsize=8, frameon=False,
                handlelength=1.2, columnspacing=1.2)  # fmt: skip


def _draw_bars(axis: Any, bars: _Bars) -> None:
    """Each kind as one collection of rectangles."""
    from matplotlib.collections import PolyCollection

    for kind in np.unique(bars.kind):
        own = bars.kind == kind
        left, right = bars.start[own], bars.end[own]
        low, high = bars.rank[own] + bars.bottom[own], bars.rank[own] + bars.top[own]
        corners = np.stack([np.stack([left, left, right, right], 1), np.stack([low, high, high, low], 1)], axis=2)
        axis.add_collection(PolyCollection(corners, facecolors=COLOURS[_KINDS[kind]], edgecolors="white", linewidths=0.3))


def _draw_numbers(axis: Any, bars: _Bars, limit: float) -> None:
    """Print microbatch numbers if there are not too many bars and every one has room for its own."""
    own = np.flatnonzero(bars.number >= 0)
    if not 0 < len(own) <= _MOST_NUMBERS:
        return
    inches = (bars.end[own] - bars.start[own]) / limit * 11.5
    digits = np.char.str_len(bars.number[own].astype(str))
    fits = inches > 0.065 * digits + 0.02
    for bar in own[fits]:
        axis.text(
            (bars.start[bar] + bars.end[bar]) / 2,
            bars.rank[bar] + (_TOP + _BOTTOM) / 2,
            str(bars.number[bar]),
            ha="center",
            va="center_baseline",
            fontsize=7,
            color="white" if _KINDS[bars.kind[bar]] == "weight gradient" else "#202020",
        )


def _draw_image(axis: Any, ranks: int, makespan: float, groups: Sequence[_Bars]) -> None:
    """Every pixel mixed from the colours of what runs in its time, in proportion."""
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(COLOURS[name]) for name in _KINDS])
    image = np.ones((ranks, _LINES, _PIXELS, 3))
    lines = (np.arange(_LINES) + 0.5) / _LINES - 0.5
    image[:, (lines >= _TOP) & (lines < _BOTTOM)] = palette[_KINDS.index("bubble")]
    edges = np.linspace(0.0, makespan, _PIXELS + 1)
    for bars in groups:
        group = bars.rank.astype(np.int64) * len(_KINDS) + bars.kind
        order = np.argsort(group, kind="stable")
        keys, first = np.unique(group[order], return_index=True)
        for key, rows in zip(keys, np.split(order, first[1:]), strict=True):
            rank, kind = divmod(int(key), len(_KINDS))
            cover = _coverage(edges, bars.start[rows], bars.end[rows])[:, np.newaxis]
            band = (lines >= bars.top[rows[0]]) & (lines < bars.bottom[rows[0]])
            under = palette[_KINDS.index("bubble")] if bars.top[rows[0]] == _TOP else 1.0
            image[rank, band] += cover * (palette[kind] - under)
    image = np.clip(image, 0.0, 1.0).reshape(ranks * _LINES, _PIXELS, 3)
    axis.imshow(image, extent=(0.0, makespan, ranks - 0.5, -0.5), aspect="auto", interpolation="antialiased")


def _coverage(
    edges: NDArray[np.float64], start: NDArray[np.float64], end: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Part of each interval between edges in which something runs (at most 1 where several do).

    >>> _coverage(np.array([0.0, 1.0, 2.0]), np.array([0.5]), np.array([1.25])).tolist()
    [0.5, 0.25]
    """

    def passed(moments: NDArray[np.float64]) -> NDArray[np.float64]:
        moments = np.sort(moments)
        before = np.searchsorted(moments, edges)
        return before * edges - np.concatenate([[0.0], np.cumsum(moments)])[before]

    busy: NDArray[np.float64] = np.clip(np.diff(passed(start) - passed(end)) / np.diff(edges), 0.0, 1.0)
    return busy


def _draw_memory(axis: Any, program: Program, trace: Trace, capacity: float | None) -> None:
    """Total memory of every rank over time; where there are more changes than pixels, the highest of each pixel."""
    from matplotlib import colormaps
    from matplotlib.ticker import EngFormatter

    edges = np.linspace(0.0, trace.makespan, _PIXELS + 1)
    named = set(np.linspace(0, program.ranks - 1, min(program.ranks, 8)).round().astype(int).tolist())
    for rank in range(program.ranks):
        times, levels = memory_timeline(program, trace, rank)
        total = levels.sum(axis=1) / GIB
        if len(times) > _PIXELS:
            column = np.searchsorted(times, edges[:-1], side="right") - 1
            highest = np.maximum.reduceat(total, column)
            times, total = edges[:-1], np.maximum(highest, total[column])
        colour = colormaps["viridis"](0.92 * rank / max(program.ranks - 1, 1))
        label = f"rank {rank}" if rank in named else None
        line = (np.append(times, trace.makespan), np.append(total, total[-1]))
        axis.step(*line, where="post", color=colour, lw=1.1, label=label)
    if capacity is not None:
        axis.axhline(capacity / GIB, color="#b00020", ls="--", lw=1.2, label=f"capacity {show(capacity, 'B')}")
    axis.set_xlim(0.0, trace.makespan or 1.0)
    axis.set_ylim(bottom=0.0)
    axis.margins(y=0.12)
    axis.set_ylabel("memory [GiB]")
    axis.set_xlabel("time")
    axis.xaxis.set_major_formatter(EngFormatter(unit="s"))
    axis.grid(axis="y", color="#e4e4e4", lw=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, ncols=10, columnspacing=1.2)


def _draw_breakdown(axis: Any, mean: dict[str, float]) -> None:
    """One bar: the parts of the step, mean over all ranks."""
    total = sum(mean.values()) or 1.0
    left = 0.0
    for name, seconds in mean.items():
        part = seconds / total
        if part <= 0.0:
            continue
        axis.barh(0, part, left=left, height=1.0, color=COLOURS[name], edgecolor="white", lw=0.6)
        if part > 0.045:
            dark = name not in ("bubble", "forward", "backward")
            colour = "white" if dark else "#202020"
            axis.text(left + part / 2, 0, f"{name}\n{part:.1%}", ha="center", va="center", fontsize=8, color=colour)
        left += part
    axis.set_xlim(0.0, 1.0)
    axis.set_axis_off()
    axis.set_title("where the time goes, mean over ranks", loc="left", fontsize=9)
