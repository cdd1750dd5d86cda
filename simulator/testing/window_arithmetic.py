"""Operations that read windows, on the parts that simulated ranks have: neighbours' rows come by the halos that were derived."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.partition.derive import DerivedOp
from simulator.testing.simulated_ranks import Array, Parts, SimulatedRanks, einsum
from simulator.workload.graph import Dim
from simulator.workload.windows import Windowed

__all__ = ["window_backward", "window_forward"]


def window_forward(ranks: SimulatedRanks, op: DerivedOp, windowed: Windowed, read: dict[str, Parts]) -> Parts:
    """Return what comes out of an operation on every rank."""
    shapes = tuple(d.size for d in op.part("output")[0].used_shape)
    out = {}
    for at, x in _padded(ranks, op, windowed, read).items():
        made = np.zeros(shapes)
        for tap, rows in _taps(windowed, made.shape):
            made += _through(windowed, x[rows], read, at, tap)
        out[at] = made
    return out


def window_backward(
    ranks: SimulatedRanks, op: DerivedOp, windowed: Windowed, read: dict[str, Parts], gradient: Parts
) -> dict[str, Parts]:
    """Return the gradients of an operation's input and weight on every rank, neighbours' rows given back."""
    x, out = windowed.inputs[0], windowed.outputs[0]
    given = _padded(ranks, op, windowed, read)
    to_x = {at: np.zeros_like(part) for at, part in given.items()}
    to_weight = {w.name: {at: np.zeros_like(part) for at, part in read[w.name].items()} for w in windowed.weights}
    for at, g in gradient.items():
        for tap, rows in _taps(windowed, g.shape):
            if not windowed.weights:
                to_x[at][rows] += g
                continue
            w = windowed.weights[0]
            kernel = w.dims[len(windowed.windows) :]
            to_x[at][rows] += einsum(g, read[w.name][at][tap], (out.dims, kernel, x.dims))
            to_weight[w.name][at][tap] += einsum(given[at][rows], g, (x.dims, out.dims, kernel))
    exchanged = {halo.dim for halo in op.halos}
    for window in windowed.windows:
        if window.dim not in exchanged:
            where = _place(x.dims, window.dim)
            to_x = {
                at: part[(slice(None),) * where + (slice(window.before, part.shape[where] - window.after),)]
                for at, part in to_x.items()
            }
    for halo in reversed(op.halos):
        to_x = ranks.without_halo(to_x, x.dims, halo)
    return {x.name: to_x, **to_weight}


def _padded(ranks: SimulatedRanks, op: DerivedOp, windowed: Windowed, read: dict[str, Parts]) -> Parts:
    """The input with what stands beyond its ends: neighbours' rows, or zeros."""
    x = windowed.inputs[0]
    parts = read[x.name]
    for halo in op.halos:
        parts = ranks.with_halo(parts, x.dims, halo)
    exchanged = {halo.dim for halo in op.halos}
    around = {w.dim: (w.before, w.after) for w in windowed.windows if w.dim not in exchanged}
    return {at: np.pad(part, [around.get(d.name, (0, 0)) for d in x.dims]) for at, part in parts.items()}


def _taps(windowed: Windowed, made: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Every tap with the rows of the input that it reads for outputs of this shape."""
    names = [d.name for d in windowed.outputs[0].dims]
    for tap in windowed.taps:
        of = {w.dim: (i, w) for i, w in zip(tap, windowed.windows, strict=True)}
        rows = [slice(None)] * len(windowed.inputs[0].dims)
        for dim, (first, window) in of.items():
            size = made[names.index(dim)]
            end = first + (size - 1) * window.stride + 1
            rows[_place(windowed.inputs[0].dims, dim)] = slice(first, end, window.stride)
        yield tap, tuple(rows)


def _through(windowed: Windowed, x: Array, read: dict[str, Parts], at: tuple[int, ...], tap: tuple[int, ...]) -> Array:
    if not windowed.weights:
        return x
    weight = windowed.weights[0]
    dims = windowed.inputs[0].dims, weight.dims[len(windowed.windows) :], windowed.outputs[0].dims
    return einsum(x, read[weight.name][at][tap], dims)


def _place(dims: tuple[Dim, ...], name: str) -> int:
    return [d.name for d in dims].index(name)
