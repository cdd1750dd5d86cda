"""Operations whose every output reads a window of its input's rows: convolutions, and shifts along a dimension.

    convolution   y[n, h, w, c_out] = sum over a window of x[n, h stride + i - before, w stride + j - before, c_in] k[i, j, c_in, c_out]
    shift         y[stage] = x[stage - 1], and zeros where there is none before: how a pipeline of equal stages hands on what they made

Beyond the ends of a dimension stand zeros, so that a dimension of n rows has n / stride outputs.
Source of pipelines as a dimension that is shifted: Xu et al., GSPMD, arXiv 2105.04663, section 3.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.errors import GraphError
from simulator.workload.graph import Dim, Op, Tensor

__all__ = ["Window", "Windowed", "convolution", "shift"]


@dataclass(frozen=True, slots=True)
class Window:
    """What an output reads of one dimension.

    Args:
        dim: its name.
        size: rows of the window; `stride`: from one window to the next.
        before: rows of the first window that stand before the first row.
    """

    dim: str
    size: int
    stride: int
    before: int

    @property
    def after(self) -> int:
        """Rows of the last window that stand behind the last row."""
        return self.size - self.stride - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed(Op):
    """One input, one output; with a weight the sum of its products over the windows, without one the windows' first rows.

    Args:
        windows: one per dimension that has one; they are the first dimensions of the weight.
    """

    windows: tuple[Window, ...]

    @property
    def taps(self) -> Iterator[tuple[int, ...]]:
        """Which rows of its windows an output reads."""
        return itertools.product(*(range(w.size if self.weights else 1) for w in self.windows))


def convolution(
    label: str, x: Tensor, weight: Tensor, name: str, stride: int = 1, spatial: Sequence[str] = ("h", "w")
) -> Windowed:
    """Return a convolution; its output is as large as its input, but for the stride.

    Args:
        x: its last dimension is c_in.
        weight: a dimension of its own per spatial one, then c_in and c_out.
        name: of its output.

    Raises:
        GraphError: a stride does not divide its dimension, or is larger than the window.

    >>> x = Tensor("x", (Dim("n", 2), Dim("h", 8), Dim("w", 8), Dim("c_in", 3)), 2.0)
    >>> k = Tensor("k", (Dim("kh", 3), Dim("kw", 3), Dim("c_in", 3), Dim("c_out", 5)), 2.0, "weight")
    >>> op = convolution("conv", x, k, "y", stride=2)
    >>> [(d.name, d.size) for d in op.outputs[0].dims], [(w.before, w.after) for w in op.windows]
    ([('n', 2), ('h', 4), ('w', 4), ('c_out', 5)], [(0, 1), (0, 1)])
    """
    sizes = {d.name: d.size for d in x.dims}
    windows = []
    for dim, window in zip(spatial, weight.dims, strict=False):
        if sizes[dim] % stride or window.size < stride:
            raise GraphError(
                f"convolution {label!r}: expected a stride that divides {dim} = {sizes[dim]} and is at most its window of {window.size}, "
                f"got {stride}"
            )
        windows.append(Window(dim, window.size, stride, (window.size - stride) // 2))
    dims = tuple(Dim(d.name, d.size // stride) if d.name in spatial else d for d in x.dims[:-1])
    out = Tensor(name, (*dims, weight.dims[-1]), x.element)
    return Windowed(label=label, inputs=(x,), weights=(weight,), outputs=(out,), windows=tuple(windows))


def shift(label: str, x: Tensor, dim: str, name: str) -> Windowed:
    """Return what hands every row of a dimension to the next one."""
    out = Tensor(name, x.dims, x.element)
    return Windowed(label=label, inputs=(x,), outputs=(out,), windows=(Window(dim, 2, 1, 1),))
