"""Who holds what: every tensor of some operations as a rectangle, cut as a layout cuts it, coloured by the ranks that have each part."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import shortened
from simulator.partition.layout import Mesh
from simulator.report.picture import new_picture, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["TensorPicture", "plot_layout"]

_MOST_PARTS = 32
"""Parts of a dimension that are drawn one by one."""


@dataclass(frozen=True, slots=True)
class TensorPicture:
    """A tensor.

    Args:
        name: below its rectangle.
        dims: (name, size), undivided.
        cuts: dimension -> axes that cut it, in their order.
        sums: axes whose ranks have terms of it.
        sign: what stands before it: "", "x", "=".
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    cuts: dict[str, tuple[str, ...]]
    sums: tuple[str, ...] = ()
    sign: str = ""

    @property
    def sides(self) -> tuple[str, str]:
        """The dimensions down and across: those that are cut, else the largest ones; "" where it has only one."""
        names = [name for name, _ in self.dims]
        size = dict(self.dims)
        some = sorted(names, key=lambda name: (name not in self.cuts, -size[name]))[:2]
        some.sort(key=names.index)
        return ("", some[0]) if len(some) == 1 else (some[0], some[1])


def plot_layout(
    rows: Sequence[tuple[str, Sequence[TensorPicture], str]], mesh: Mesh, path: str | Path, title: str = ""
) -> Path:
    """Draw into a file; its ending chooses the format.

    Args:
        rows: (operation, its tensors, what is exchanged) from top to bottom.
        mesh: (axis, ranks); colours tell the first three axes.
        title: above the picture.

    Raises:
        SpecError: an ending that names no picture format.
    """
    columns = max(len(tensors) for _, tensors, _ in rows)
    width, height = 2.0 + 2.6 * columns + 3.4, 1.0 + 1.85 * len(rows)
    figure = new_picture(path, width, height, dpi=110, layout=None)
    grid = figure.add_gridspec(
        len(rows),
        columns + 2,
        width_ratios=[1.6, *[2.0] * columns, 3.3],
        left=0.01,
        right=0.99,
        top=1.0 - 0.75 / height,
        bottom=0.45 / height,
        wspace=0.45,
        hspace=0.75,
    )
    for i, (label, tensors, exchanged) in enumerate(rows):
        _words(figure.add_subplot(grid[i, 0]), label, bold=True)
        for j, tensor in enumerate(tensors):
            _draw(figure.add_subplot(grid[i, j + 1]), tensor, mesh)
        _words(figure.add_subplot(grid[i, columns + 1]), exchanged)
    inch = 1.0 / width
    _legend(figure.add_axes((0.985 - 1.5 * inch, 1.0 - 0.62 / height, 1.5 * inch, 0.5 / height)), mesh)
    figure.text(0.01, 1.0 - 0.28 / height, title, fontsize=12, weight="bold", va="center")
    return save_picture(figure, path)


def _words(axes: Axes, text: str, bold: bool = False) -> None:
    axes.axis("off")
    axes.text(
        0.0,
        0.5,
        text,
        fontsize=9 if bold else 8,
        weight="bold" if bold else "normal",
        va="center",
        transform=axes.transAxes,
    )


def _draw(axes: Axes, tensor: TensorPicture, mesh: Mesh) -> None:
    down, across = tensor.sides
    size = dict(tensor.dims)
    _blocks(axes, tensor, mesh, down, across)
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_linewidth(0.8)
    axes.set_xlabel(_side(across, size, tensor, mesh), fontsize=7.5, labelpad=2)
    if down:
        axes.set_ylabel(_side(down, size, tensor, mesh).replace(" / ", "\n/ "), fontsize=7.5, labelpad=2)
    rest = [_side(name, size, tensor, mesh) for name, _ in tensor.dims if name not in (down, across)]
    sums = [f"sum over {axis}" for axis in tensor.sums]
    axes.set_title(
        shortened(tensor.name, 30) + ("\n" if rest or sums else "") + ", ".join((*rest, *sums)), fontsize=8, pad=3
    )
    if tensor.sign:
        axes.text(-0.33, 0.5, tensor.sign, fontsize=13, ha="center", va="center", transform=axes.transAxes)


def _side(name: str, size: dict[str, int], tensor: TensorPicture, mesh: Mesh) -> str:
    on = tensor.cuts.get(name, ())
    parts = math.prod(dict(mesh)[axis] for axis in on)
    return f"{name} {size[name]}" + (f" / {parts} on {', '.join(on)}" if on else "")


def _blocks(axes: Axes, tensor: TensorPicture, mesh: Mesh, down: str, across: str) -> None:
    """The parts of a tensor, each in the colour of the ranks that have it; the first rank's part is framed."""
    from matplotlib.patches import Rectangle

    sizes = dict(mesh)

    def parts(name: str) -> list[dict[str, int]]:
        on = tensor.cuts.get(name, ())
        total, half = math.prod(sizes[axis] for axis in on), _MOST_PARTS // 2
        drawn = range(total) if total <= _MOST_PARTS else (*range(half), *range(total - half, total))
        return [_coordinates(number, on, sizes) for number in drawn]

    rows, columns = parts(down), parts(across)
    wide, high = 1.0 / len(columns), 1.0 / len(rows)
    edge = 0.6 if max(len(rows), len(columns)) <= 16 else 0.2
    options: dict[str, Any] = {"hatch": "////"} if tensor.sums else {}
    for i, one in enumerate(rows):
        for j, other in enumerate(columns):
            colour = _colour({**one, **other}, mesh)
            place = (j * wide, i * high)
            axes.add_patch(Rectangle(place, wide, high, facecolor=colour, edgecolor="white", linewidth=edge, **options))
    axes.add_patch(Rectangle((0, 0), wide, high, fill=False, edgecolor="black", linewidth=1.8, zorder=3, clip_on=False))


def _coordinates(number: int, axes: tuple[str, ...], sizes: dict[str, int]) -> dict[str, int]:
    """Axis -> place on it of the number-th part that some axes cut."""
    out = {}
    for axis in reversed(axes):
        number, out[axis] = divmod(number, sizes[axis])
    return out


def _colour(at: dict[str, int], mesh: Mesh) -> tuple[float, float, float]:
    """The first axis is a hue, the second a lightness, the third a saturation (of green, without the first); what none cuts is grey."""
    share: list[float | None] = [None, None, None]
    for i, (axis, ranks) in enumerate(mesh[:3]):
        if axis in at:
            share[i] = at[axis] / (ranks if i == 0 else max(1, ranks - 1))
    hue, light, full = share
    level = 0.85 if at == {} else 0.62 if light is None else 0.42 + 0.42 * light
    if full is None:
        return colorsys.hls_to_rgb(0.58 + (hue or 0.0), level, 0.0 if hue is None else 0.5)
    if hue is None and light is None:
        level = 0.42 + 0.42 * full
    return colorsys.hls_to_rgb(0.58 + hue if hue is not None else 0.33, level, 0.2 + 0.6 * full)


def _legend(axes: Axes, mesh: Mesh) -> None:
    """The mesh itself, in the colours of its ranks."""
    from matplotlib.patches import Rectangle

    first, second = mesh[0], mesh[1] if len(mesh) > 1 else ("", 1)
    for i in range(min(first[1], _MOST_PARTS)):
        for j in range(min(second[1], _MOST_PARTS)):
            at = {first[0]: i} | ({second[0]: j} if second[0] else {})
            axes.add_patch(Rectangle((j, i), 1, 1, facecolor=_colour(at, mesh), edgecolor="white", linewidth=0.4))
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor="black", linewidth=1.5, zorder=3, clip_on=False))
    axes.set_xlim(0, min(second[1], _MOST_PARTS))
    axes.set_ylim(min(first[1], _MOST_PARTS), 0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel(f"{first[0]} {first[1]}", fontsize=7.5)
    if second[0]:
        axes.set_xlabel(f"{second[0]} {second[1]}", fontsize=7.5)
    others = ", ".join(f"{axis} {size}" for axis, size in mesh[3:])
    third = f"\nsaturation: {mesh[2][0]} {mesh[2][1]}" if len(mesh) > 2 else ""
    text = f"the mesh;\nframed: rank 0{third}" + (f"\nnot in colour: {others}" if others else "")
    axes.text(-0.35, 0.5, text, fontsize=7.5, ha="right", va="center", transform=axes.transAxes)
