"""Tensors that lie on several ranks, as numpy arrays, and the changes of placement between them.

It knows nothing of how a layout is chosen or what a product needs: it cuts, moves and multiplies what it is told to, and so it shows
whether the collectives that were derived bring every rank what the undivided computation has.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.partition.halos import Halo
from simulator.partition.layout import PARTIAL, Mesh, Placement, Shard
from simulator.partition.redistribute import Move
from simulator.workload.graph import Dim

__all__ = ["Array", "Parts", "SimulatedRanks"]

Array = np.ndarray[Any, np.dtype[np.float64]]
Parts = dict[tuple[int, ...], Array]


@dataclass(frozen=True, slots=True)
class SimulatedRanks:
    """The ranks of a mesh; a tensor on them is a dict from coordinates to what lies there."""

    mesh: Mesh

    @property
    def coordinates(self) -> list[tuple[int, ...]]:
        """Of all ranks."""
        return list(itertools.product(*(range(size) for _, size in self.mesh)))

    def place(self, whole: Array, dims: tuple[Dim, ...], placement: Mapping[str, Placement]) -> Parts:
        """Return a tensor as it lies; of a sum the first rank of an axis has all and the others zeros.

        Args:
            placement: axes of one dimension in the order in which they cut it.
        """
        names, out = [axis for axis, _ in self.mesh], {}
        for at in self.coordinates:
            mine = whole
            for axis, lie in placement.items():
                place = names.index(axis)
                if isinstance(lie, Shard):
                    mine = _part(mine, dims, lie.dim, self.mesh[place][1], at[place])
                elif lie == PARTIAL and at[place]:
                    mine = np.zeros_like(mine)
            out[at] = mine
        return out

    def change(self, parts: Parts, dims: tuple[Dim, ...], moves: tuple[Move, ...]) -> Parts:
        """Return a tensor after changes of its placement, each by the collective that the change names."""
        for move in moves:
            place = [axis for axis, _ in self.mesh].index(move.axis)
            size = self.mesh[place][1]
            changed = {}
            for at, mine in parts.items():
                group = [parts[(*at[:place], i, *at[place + 1 :])] for i in range(size)]
                changed[at] = _ended(move, group, mine, dims, size, at[place])
            parts = changed
        return parts

    def with_halo(self, parts: Parts, dims: tuple[Dim, ...], halo: Halo) -> Parts:
        """Return a tensor with rows of the neighbours before and behind, and zeros where there is none."""
        where, out = _axis(dims, halo.dim), {}
        for at, mine in parts.items():
            before, behind = (parts.get(other) if other else None for other in self._neighbours(at, halo.axes))
            first = _rows(mine, where, 0, halo.before) * 0 if before is None else before
            last = _rows(mine, where, 0, halo.after) * 0 if behind is None else behind
            size = first.shape[where]
            out[at] = np.concatenate(
                [_rows(first, where, size - halo.before, size), mine, _rows(last, where, 0, halo.after)], where
            )
        return out

    def without_halo(self, parts: Parts, dims: tuple[Dim, ...], halo: Halo) -> Parts:
        """Return the gradient of a tensor from that of it `with_halo`: neighbours' rows go back to them and are added."""
        where, out = _axis(dims, halo.dim), {}
        end = {at: part.shape[where] - halo.after for at, part in parts.items()}
        for at, part in parts.items():
            mine = np.array(_rows(part, where, halo.before, end[at]))
            before, behind = self._neighbours(at, halo.axes)
            size = mine.shape[where]
            if before:
                _rows(mine, where, 0, halo.after)[...] += _rows(parts[before], where, end[before], None)
            if behind:
                _rows(mine, where, size - halo.before, size)[...] += _rows(parts[behind], where, 0, halo.before)
            out[at] = mine
        return out

    def _neighbours(self, at: tuple[int, ...], axes: tuple[str, ...]) -> list[tuple[int, ...] | None]:
        """The ranks before and behind one along a dimension that these axes cut."""
        places = [[axis for axis, _ in self.mesh].index(axis) for axis in axes]
        row = list(itertools.product(*(range(self.mesh[place][1]) for place in places)))
        number, found = row.index(tuple(at[place] for place in places)), []
        for other in (number - 1, number + 1):
            there = dict(zip(places, row[other], strict=True)) if 0 <= other < len(row) else None
            found.append(None if there is None else tuple(there.get(i, mine) for i, mine in enumerate(at)))
        return found

    def einsum(self, first: Parts, second: Parts, dims: tuple[tuple[Dim, ...], ...]) -> Parts:
        """Multiply on every rank what lies there.

        Args:
            dims: of both operands and of the result.
        """
        return {at: einsum(first[at], second[at], dims) for at in self.coordinates}


def einsum(first: Array, second: Array, dims: tuple[tuple[Dim, ...], ...]) -> Array:
    """Multiply two arrays and sum over the dimensions that the result lacks.

    Args:
        dims: of both operands and of the result.
    """
    letters: dict[str, str] = {}
    for dim in itertools.chain(*dims):
        letters.setdefault(dim.name, chr(ord("a") + len(letters)))
    a, b, c = ("".join(letters[d.name] for d in each) for each in dims)
    return np.asarray(np.einsum(f"{a},{b}->{c}", first, second, optimize=True))


def _ended(move: Move, group: list[Array], mine: Array, dims: tuple[Dim, ...], size: int, index: int) -> Array:
    """What a rank has after the collective of a move; `group`: what the ranks of its axis had."""
    match move.collective:
        case "all_reduce":
            return np.asarray(np.sum(group, axis=0))
        case "reduce_scatter":
            mine = np.sum(group, axis=0)
        case "all_gather" | "all_to_all":
            assert isinstance(move.held, Shard)
            mine = np.concatenate(group, axis=_axis(dims, move.held.dim))
    return _part(mine, dims, move.wanted.dim, size, index) if isinstance(move.wanted, Shard) else mine


def _part(whole: Array, dims: tuple[Dim, ...], name: str, size: int, index: int) -> Array:
    return np.split(whole, size, axis=_axis(dims, name))[index]


def _rows(array: Array, where: int, first: int, end: int | None) -> Array:
    """Some rows of an axis, as a view."""
    return array[(slice(None),) * where + (slice(first, end),)]


def _axis(dims: tuple[Dim, ...], name: str) -> int:
    return [d.name for d in dims].index(name)
