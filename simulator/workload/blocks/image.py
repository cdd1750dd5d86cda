"""What networks of images are made of: convolutions, dense layers, and kernels that move bytes.

Passes over a tensor, e = bytes of an element:

    norms            forward   sums over all positions: x read; then x read, y written
                     backward  sums: x, dy read; then x, dy read, dx written
                     (PyTorch aten/src/ATen/native/cuda/Normalization.cuh: batch_norm_collect_statistics and batch_norm_transform_input,
                     batch_norm_backward_reduce and batch_norm_backward_elemt)
    ReLU             in place: x read and written; backward reads its result and dy, writes dx
    sums             both read, one written; backward hands the gradient on
    several readers  of one tensor: their gradients are added, two read and one written each time
    joined channels  a copy; backward a copy
    largest          windows read once (caches serve what overlaps), result and its places (8 bytes each) written; backward both read
                     and a whole input written (max_pool2d_with_indices)
    means            input read, result written; backward the reverse
    dropout          x read, y and a mask of a byte written; backward dy and mask read, dx written

Convolutions are products over windows that lie in memory once (`Convolution`).  A tensor is kept for the backward once, by the first that
reads it; a layer's last result by the layer that takes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Convolution, Dim, Keep, Kernel, Measured, Moves, Tensor

__all__ = ["ImageBuilder", "multiplications_saved"]

_WINOGRAD = 2.25
"""Multiplications of 2 x 2 positions of a 3 x 3 window, 36, over 16 of F(2 x 2, 3 x 3): Lavin and Gray, arXiv 1509.09308, section 4.1."""
_PLACE = 8.0
"""Bytes of the place of a largest number (torch: int64)."""


def multiplications_saved(window: Sequence[int], stride: Sequence[int]) -> float:
    """Return how many times fewer multiplications a convolution takes over transformed tiles of its windows (Winograd)."""
    return _WINOGRAD if (tuple(window), tuple(stride)) == ((3, 3), (1, 1)) else 1.0


class ImageBuilder:
    """Adds operations on images to a layer; tensors are [images, positions, channels]."""

    def __init__(self, g: LayerBuilder) -> None:
        self.g = g
        self._kept: set[str] = set()

    def tensor(self, name: str, channels: int, height: int, width: int, role: str = "activation") -> Tensor:
        """A tensor of images."""
        g = self.g
        return g.tensor(name, g.batch, _positions(height, width), Dim("channels", channels), role=role)

    def keep(self, x: Tensor) -> tuple[Keep, ...]:
        """Keep a tensor, unless the layer does already."""
        if x.name in self._kept:
            return ()
        self._kept.add(x.name)
        return (Keep(tensor=x),)

    def convolution(
        self,
        x: Tensor,
        out: Tensor,
        window: tuple[int, int],
        stride: tuple[int, int],
        groups: int,
        bias: bool,
        of_data: bool,
    ) -> None:
        """Add a convolution.

        Args:
            window, stride: along both sides.
            groups: of channels that meet only each other.
            of_data: whether its input needs no gradient.
        """
        g, channels, taps = self.g, out.dims[-1], math.prod(window)
        depth = Dim("window", taps * x.dims[-1].size // groups)
        parts = (Dim("groups", groups),) if groups > 1 else ()
        columns = Dim("channels", channels.size // groups)
        weight = g.weight(f"{out.name} weight", *parts, depth, columns)
        biases = (g.weight(f"{out.name} bias", channels, role="bias"),) if bias else ()
        g.add(
            Convolution(
                label=out.name,
                inputs=(x.view(*out.dims[:-1], *parts, depth),),
                outputs=(out.view(*out.dims[:-1], *parts, columns),),
                weights=(weight, *biases),
                keeps=self.keep(x),
                taps=taps,
                shared=taps / math.prod(stride),
                saved=multiplications_saved(window, stride),
                fixed=of_data,
                backward_launches=2 + bias,
            )
        )

    def dense(self, x: Tensor, out: Tensor, bias: bool) -> Tensor:
        """Add a matrix times all numbers of an image; returns the result, without positions."""
        g, numbers = self.g, Dim("features", x.elements // self.g.batch.size)
        made = out.view(g.batch, out.dims[-1])
        kept = self.keep(x)
        g.linear(out.name, x.view(g.batch, numbers), (made,), (numbers,), keep=kept[0] if kept else None, bias=bias)
        return made

    def norm(self, x: Tensor, out: Tensor, scaled: bool) -> None:
        """Add a norm of channels, over all images or each of them; `scaled`: with a scale and a shift per channel."""
        e = self.g.e
        moved = Moves(dims=x.dims, read=2 * e, written=e, backward_read=4 * e, backward_written=e)
        names = ("scale", "shift") if scaled else ()
        weights = tuple(self.g.weight(f"{out.name} {what}", x.dims[-1], role="vector") for what in names)
        self._kernel(out, (x,), (moved,), self.keep(x), weights=weights, role="norm", launches=2, backward_launches=2)

    def relu(self, x: Tensor, out: Tensor, last: bool) -> None:
        """Add a ReLU; the next layer keeps the result where it is the `last` of its layer."""
        e = self.g.e
        moved = Moves(dims=x.dims, read=e, written=e, backward_read=2 * e, backward_written=e)
        self._kernel(out, (x,), (moved,), () if last else self.keep(out))

    def add(self, operands: tuple[Tensor, ...], out: Tensor) -> None:
        """Add a sum."""
        e = self.g.e
        moved = Moves(dims=out.dims, read=len(operands) * e, written=(len(operands) - 1) * e)
        self._kernel(out, operands, (moved,), (), role="residual", launches=len(operands) - 1, backward_launches=0)

    def concat(self, operands: tuple[Tensor, ...], out: Tensor) -> None:
        """Put channels side by side."""
        e = self.g.e
        moved = Moves.copies(out.dims, e, e)
        self._kernel(out, _apart(operands), (moved,), (), backward_launches=len(operands))

    def largest(self, x: Tensor, out: Tensor) -> None:
        """Add the largest number of each window."""
        e = self.g.e
        places = self.g.tensor(f"{out.name} places", *out.dims, element=_PLACE, role="mask")
        moved = (
            Moves(dims=x.dims, read=e, backward_written=e),
            Moves(dims=out.dims, written=e + _PLACE, backward_read=e + _PLACE),
        )
        self._kernel(out, (x,), moved, (*self.keep(x), *self.keep(places)), beside=(places,))

    def resampled(self, x: Tensor, out: Tensor, keeps: bool) -> None:
        """Add means of windows (whose input torch `keeps`, though only its sizes are used), of everything, or repeated numbers."""
        e = self.g.e
        moved = Moves(dims=x.dims, read=e, backward_written=e), Moves(dims=out.dims, written=e, backward_read=e)
        self._kernel(out, (x,), moved, self.keep(x) if keeps else ())

    def dropout(self, x: Tensor, out: Tensor) -> None:
        """Add a dropout."""
        e = self.g.e
        mask = self.g.tensor(f"{out.name} mask", *x.dims, element=1.0, role="mask")
        moved = Moves(dims=x.dims, read=e, written=e + 1.0, backward_read=e + 1.0, backward_written=e)
        self._kernel(out, (x,), (moved,), self.keep(mask), beside=(mask,))

    def measured(
        self, given: tuple[Tensor, ...], out: Tensor, forward: float, backward: float, parameters: int
    ) -> None:
        """Add what was measured of an image [s]; its result is kept."""
        g = self.g
        weights = (g.weight(f"{out.name} weights", Dim("measured", parameters), role="vector"),) if parameters else ()
        images = g.batch.size
        g.add(
            Measured(
                label=out.name,
                inputs=_apart(given),
                outputs=(out,),
                weights=weights,
                keeps=self.keep(out),
                again=(out.name,),
                forward=images * forward,
                backward=images * backward,
            )
        )

    def forked(self, x: Tensor, readers: int) -> None:
        """Add up the gradients that several readers of a tensor have."""
        e, more = self.g.e, readers - 1
        if more > 0:
            moved = Moves(dims=x.dims, backward_read=2 * e * more, backward_written=e * more)
            label = f"gradients of {x.name}"
            self.g.add(
                Kernel(
                    label=label,
                    inputs=(x,),
                    outputs=(),
                    moves=(moved,),
                    access="stream",
                    launches=0,
                    backward_launches=more,
                )
            )

    def _kernel(
        self,
        out: Tensor,
        inputs: tuple[Tensor, ...],
        moves: tuple[Moves, ...],
        keeps: tuple[Keep, ...],
        beside: tuple[Tensor, ...] = (),
        **more: Any,
    ) -> None:
        outputs = (out, *beside)
        self.g.kernel(out.name, inputs, outputs, *moves, keeps=keeps, again=(out.name,), access="stream", **more)


def _positions(height: int, width: int) -> Dim:
    """Positions of an image; those of another size are another dimension."""
    return Dim(f"{height} x {width} positions", height * width)


def _apart(operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Operands with channels of their own."""
    return tuple(x.view(*x.dims[:-1], Dim(f"channels {i}", x.dims[-1].size)) for i, x in enumerate(operands))
