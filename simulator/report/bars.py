"""The bars of a timeline picture: what is drawn where, and the three ways to draw it (bars, numbers, dense columns).

Each rank has a band: its compute stream on top, below it one thin strip per kind of communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.program.prices import ACCOUNTS, Prices
from simulator.program.program import COMPUTE, Link, Program, Segment
from simulator.program.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

__all__ = [
    "BAR_MIDDLE",
    "COLOURS",
    "COLUMNS",
    "KINDS",
    "Bars",
    "colour_of",
    "compute_bars",
    "draw_bars",
    "draw_columns",
    "draw_numbers",
    "kind_words",
    "link_bars",
    "patches_of",
]

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

_WORDS = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "dp": "data parallel",
    "pp": "pipeline messages",
}

KINDS = tuple(COLOURS)
_OF_ACTION = {0: "forward", 1: "backward", 2: "backward", 3: "weight gradient", 4: "optimizer"}
COLUMNS, _LINES = 600, 32
"""Columns of a dense picture, and image lines per rank."""
_TOP, _BOTTOM, _FOOT = -0.42, 0.20, 0.44
"""Edges of the band of rank 0: top and bottom of the compute bar, bottom of the strips; rank r lies r further down."""
_SLIMMEST = 600
"""A bar shorter than this part of the picture is a line."""
BAR_MIDDLE = (_TOP + _BOTTOM) / 2
"""Middle of the compute bar of rank 0."""
_MOST_NUMBERS = 1_500
_PAIR = 5
_DARKER = 0.7
"""The action of a fused pair."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bars:
    """Rectangles: rank, kind (index into KINDS), start and end [s], band edges, number to print or -1, row of the program (the first
    of those that a bar joins), and which of two directions of the pipeline it belongs to."""

    rank: NDArray[np.int32]
    kind: NDArray[np.int8]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    top: NDArray[np.float64]
    bottom: NDArray[np.float64]
    number: NDArray[np.int32]
    row: NDArray[np.int64]
    way: NDArray[np.int8]


def compute_bars(program: Program, prices: Prices | None, trace: Trace) -> Bars:
    """One bar per action, two where it begins with recomputation; of a fused pair the forward above the backward.

    The segments of an action that was cut are one bar where they follow each other at once.
    """
    rows = np.flatnonzero((program.kind == COMPUTE) & (trace.end > trace.start))
    of_item = [KINDS.index(item.phase) if isinstance(item, Segment) else 0 for item in program.items]
    kind = np.array(of_item, np.int8)[program.item[rows]]
    for action, name in _OF_ACTION.items():
        kind[program.action[rows] == action] = KINDS.index(name)
    start, end = trace.start[rows], trace.end[rows].copy()
    share = np.zeros(len(rows))
    if prices is not None:
        total = prices.account.sum(axis=1)
        part = prices.account[:, ACCOUNTS.index("recompute")] / np.where(total > 0.0, total, 1.0)
        share = part[program.item[rows]]
    joined = _continues(program, rows, start, end) & (share == 0.0) & (np.roll(share, 1) == 0.0)
    if joined.any():
        first = np.flatnonzero(~joined)
        end = np.maximum.reduceat(end, first)
        rows, start, share, kind = rows[first], start[first], share[first], kind[first]
    again = share > 0.0
    middle = start + share * (end - start)
    rank = program.rank[rows]
    number = np.where(program.action[rows] < 4, program.microbatch[rows], -1)
    pair = program.action[rows] == _PAIR
    bottom = np.where(pair, BAR_MIDDLE, _BOTTOM)
    extra, fused = int(again.sum()), int(pair.sum())
    return Bars(
        rank=np.concatenate([rank, rank[again], rank[pair]]),
        kind=np.concatenate(
            [
                kind,
                np.full(extra, KINDS.index("recompute"), np.int8),
                np.full(fused, KINDS.index("backward"), np.int8),
            ]
        ),
        start=np.concatenate([middle, start[again], middle[pair]]),
        end=np.concatenate([end, middle[again], end[pair]]),
        top=np.concatenate([np.full(len(rows) + extra, _TOP), np.full(fused, BAR_MIDDLE)]),
        bottom=np.concatenate([bottom, np.full(extra, _BOTTOM), np.full(fused, _BOTTOM)]),
        number=np.concatenate([np.where(pair, -1, number), np.full(extra + fused, -1)]).astype(np.int32),
        row=np.concatenate([rows, rows[again], rows[pair]]),
        way=program.lane[np.concatenate([rows, rows[again], rows[pair]])] % 2,
    )


def _continues(
    program: Program, rows: NDArray[np.intp], start: NDArray[np.float64], end: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether each row is the next segment of the action before it, begun when that ended."""
    out = np.zeros(len(rows), bool)
    if len(rows) > 1:
        out[1:] = (program.part[rows[1:]] == program.part[rows[:-1]] + 1) & (start[1:] == end[:-1])
        for column in (program.rank, program.action, program.chunk, program.microbatch):
            out[1:] &= column[rows[1:]] == column[rows[:-1]]
    return out


def link_bars(program: Program, trace: Trace) -> Bars:
    """One thin bar per link row and rank that takes part, in the strip of its account."""
    account = np.array([KINDS.index(i.account) if isinstance(i, Link) else -1 for i in program.items], np.int8)
    owner = program.row_of_stream_entry
    lasts = (trace.end > trace.start)[owner]
    entries = np.flatnonzero((account[program.item[owner]] >= 0) & lasts) if len(account) else np.zeros(0, np.intp)
    rows = owner[entries]
    kind = account[program.item[rows]]
    used = np.unique(kind)
    height = min((_FOOT - _BOTTOM) / max(len(used), 1), 0.12)
    top = _BOTTOM + 0.02 + height * np.searchsorted(used, kind)
    return Bars(
        rank=program.stream_rank[program.streams[entries]],
        kind=kind,
        start=trace.start[rows],
        end=trace.end[rows],
        top=np.asarray(top, np.float64),
        bottom=np.asarray(top + 0.85 * height, np.float64),
        number=np.full(len(rows), -1, np.int32),
        row=rows.astype(np.int64),
        way=np.zeros(len(rows), np.int8),
    )


def colour_of(kind: str, way: int = 0) -> str:
    """Return the colour of a kind; of the second direction of a pipeline a darker one.

    >>> colour_of("forward"), colour_of("forward", 1)
    ('#7db7e8', '#5780a2')
    """
    red, green, blue = (int(COLOURS[kind][i : i + 2], 16) for i in (1, 3, 5))
    return COLOURS[kind] if not way else "#" + "".join(f"{int(_DARKER * part):02x}" for part in (red, green, blue))


def kind_words(kind: str) -> str:
    """Return what a legend calls a kind of bar.

    >>> kind_words("tp"), kind_words("forward")
    ('tensor parallel', 'forward')
    """
    return _WORDS.get(kind, kind)


def patches_of(groups: Sequence[Bars]) -> list[Patch]:
    """Return what a legend tells of bars: each kind's colour, and that of a pipeline's second direction where any runs in it."""
    from matplotlib.patches import Patch

    seen = sorted({int(kind) for bars in groups for kind in np.unique(bars.kind)} | {KINDS.index("bubble")})
    patches = [Patch(facecolor=COLOURS[KINDS[kind]], label=kind_words(KINDS[kind])) for kind in seen]
    if any(bool(bars.way.any()) for bars in groups):
        patches.append(Patch(facecolor=colour_of("forward", 1), label="darker: the second direction"))
    return patches


def draw_bars(axis: Axes, ranks: int, makespan: float, groups: Sequence[Bars]) -> None:
    """Draw every bar, each kind as one collection of rectangles, over what is idle; the axis has its limits already."""
    axis.barh(
        np.arange(ranks) + BAR_MIDDLE, makespan, height=_BOTTOM - _TOP, color=COLOURS["bubble"], linewidth=0, zorder=0
    )
    for bars in groups:
        _draw_group(axis, bars, axis.get_xlim()[1] / _SLIMMEST)


def _draw_group(axis: Axes, bars: Bars, slim: float) -> None:
    """A white edge keeps neighbours apart; it would cover a bar shorter than `slim` seconds, which has one of its own colour."""
    from matplotlib.collections import PolyCollection

    for kind, way in np.unique(np.stack([bars.kind, bars.way], axis=1), axis=0):
        own = (bars.kind == kind) & (bars.way == way)
        left, right = bars.start[own], bars.end[own]
        low, high = bars.rank[own] + bars.bottom[own], bars.rank[own] + bars.top[own]
        corners = np.stack([np.stack([left, left, right, right], 1), np.stack([low, high, high, low], 1)], axis=2)
        colour = colour_of(KINDS[kind], way)
        edges = np.where(right - left < slim, colour, "white").tolist()
        axis.add_collection(PolyCollection(list(corners), facecolors=colour, edgecolors=edges, linewidths=0.3))


def draw_numbers(axis: Axes, bars: Bars, limit: float) -> None:
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
            bars.rank[bar] + BAR_MIDDLE,
            str(bars.number[bar]),
            ha="center",
            va="center_baseline",
            fontsize=7,
            clip_on=True,
            color="white" if KINDS[bars.kind[bar]] == "weight gradient" or bars.way[bar] else "#202020",
        )


def draw_columns(axis: Axes, ranks: int, makespan: float, groups: Sequence[Bars]) -> None:
    """In every column of a band, stack the kinds that run in its time, from the bottom up, as high as their shares."""
    from matplotlib.colors import to_rgb

    palette = (255 * np.array([to_rgb(COLOURS[name]) for name in KINDS])).astype(np.uint8)
    image = np.full((ranks, _LINES, COLUMNS, 3), 255, np.uint8)
    lines = (np.arange(_LINES) + 0.5) / _LINES - 0.5
    image[:, (lines >= _TOP) & (lines < _BOTTOM)] = palette[KINDS.index("bubble")]
    edges = np.linspace(0.0, makespan, COLUMNS + 1)
    for bars in groups:
        half = (bars.top == BAR_MIDDLE) | (bars.bottom == BAR_MIDDLE)  # of a fused pair: each counts half of the time
        group = (bars.rank.astype(np.int64) * len(KINDS) + bars.kind) * 2 + half
        order = np.argsort(group, kind="stable")
        keys, first = np.unique(group[order], return_index=True)
        filled: dict[tuple[int, float], NDArray[np.float64]] = {}
        for key, rows in zip(keys, np.split(order, first[1:]), strict=True):
            rank, kind = divmod(int(key) // 2, len(KINDS))
            top, bottom, part = float(bars.top[rows[0]]), float(bars.bottom[rows[0]]), 1.0
            if key % 2:
                top, bottom, part = _TOP, _BOTTOM, 0.5
            low = filled.get((rank, top), np.zeros(COLUMNS))
            high = filled[rank, top] = low + part * _coverage(edges, bars.start[rows], bars.end[rows])
            height = ((bottom - lines) / (bottom - top))[:, np.newaxis]
            image[rank][(height > low) & (height <= high)] = palette[kind]
    picture = image.reshape(ranks * _LINES, COLUMNS, 3)
    axis.imshow(picture, extent=(0.0, makespan, ranks - 0.5, -0.5), aspect="auto", interpolation="nearest")


def _coverage(edges: NDArray[np.float64], start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Part of each interval between edges in which something runs (at most 1 where several do).

    >>> _coverage(np.array([0.0, 1.0, 2.0]), np.array([0.5]), np.array([1.25])).tolist()
    [0.5, 0.25]
    """

    def passed(moments: NDArray[np.float64]) -> NDArray[np.float64]:
        moments = np.sort(moments)
        before = np.searchsorted(moments, edges)
        total: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(moments)])
        return before * edges - total.take(before)

    busy: NDArray[np.float64] = np.clip(np.diff(passed(start) - passed(end)) / np.diff(edges), 0.0, 1.0)
    return busy
