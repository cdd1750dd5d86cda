"""Rings along the rows of a grid of ranks, then along its columns: what the hierarchical and the torus algorithm share.

Of all_reduce with rows of x and columns of y ranks: rows add up (each rank ends with 1/x of the message), columns reduce
that x-th to the end, rows hand the results round.  So the columns' wires carry 1/x of what one long ring would need.
"""

from __future__ import annotations

import abc

import numpy as np

from simulator.collectives.base import Phase, Transfer
from simulator.collectives.plain import PlainCollective
from simulator.collectives.rounds import Pattern, Round
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["TwoLevel"]


class TwoLevel(PlainCollective):
    """Rings in two directions; `grid` says how long the rows and columns are."""

    kinds = ("all_reduce", "all_gather", "reduce_scatter")

    @abc.abstractmethod
    def grid(self, place: GroupPlacement) -> tuple[int, int]:
        """Return (ranks of a row, number of rows); rank = row x ranks of a row + place in it."""

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """Return whether the grid is full."""
        row, rows = self.grid(place)
        return kind in self.kinds and row * rows == place.ranks

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return the steps of both rings, twice for all_reduce."""
        row, rows = self.grid(place)
        return _ways(kind) * (row - 1 + rows - 1)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return (x - 1) / x of the rows and (y - 1) / y / x of the columns, twice for all_reduce."""
        row, rows = self.grid(place)
        return _ways(kind) * ((row - 1) / row + (rows - 1) / rows / row)

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the steps; part m x (ranks of a row) + j is gathered at place j of row m."""
        row, rows = self.grid(place)
        sums = [_along_rows(row, rows, -1 - s, True) for s in range(row - 1)]
        sums += [_along_columns(row, rows, -1 - s, True) for s in range(rows - 1)]
        copies = [_along_columns(row, rows, -s, False) for s in range(rows - 1)]
        copies += [_along_rows(row, rows, -s, False) for s in range(row - 1)]
        return tuple((sums if kind != "all_gather" else []) + (copies if kind != "reduce_scatter" else []))

    def patterns(self, kind: str, place: GroupPlacement) -> tuple[Round, ...]:
        """Return one pattern for all steps along the rows, and one for those along the columns."""
        row, rows = self.grid(place)
        ranks = np.arange(place.ranks)
        inside = Pattern.pairs(ranks, ranks - ranks % row + (ranks + 1) % row, 1 / row), row - 1
        across = Pattern.pairs(ranks, (ranks + row) % place.ranks, 1 / place.ranks), rows - 1
        sums = [inside, across] if kind != "all_gather" else []
        copies = [across, inside] if kind != "reduce_scatter" else []
        return tuple(found for found in sums + copies if found[1])


def _ways(kind: str) -> int:
    return 2 if kind == "all_reduce" else 1


def _along_rows(row: int, rows: int, shift: int, combines: bool) -> Phase:
    """Return one step of the rings inside the rows: place i sends all parts of place i + shift to place i + 1."""
    return tuple(
        Transfer(
            sources=(m * row + i,),
            destinations=(m * row + (i + 1) % row,),
            parts=tuple(range((i + shift) % row, row * rows, row)),
            fraction=1 / row,
            combines=combines,
        )
        for m in range(rows)
        for i in range(row)
    )


def _along_columns(row: int, rows: int, shift: int, combines: bool) -> Phase:
    """Return one step of the rings along the columns: row m sends its part of row m + shift to row m + 1."""
    return tuple(
        Transfer(
            sources=(m * row + j,),
            destinations=((m + 1) % rows * row + j,),
            parts=((m + shift) % rows * row + j,),
            fraction=1 / row / rows,
            combines=combines,
        )
        for m in range(rows)
        for j in range(row)
    )
