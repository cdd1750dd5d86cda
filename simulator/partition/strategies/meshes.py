"""What layouts on several mesh axes share: their axes, the widths that they divide, and the shapes of meshes that there are."""

from __future__ import annotations

import abc
import math

from simulator.errors import LayoutError
from simulator.partition.strategies.base import Strategy

__all__ = ["COLS", "DEPTH", "ROWS", "WIDTHS", "MeshStrategy"]

COLS, ROWS, DEPTH = "cols", "rows", "depth"
"""Mesh axes: ranks of one row, which are consecutive; of one column; and of one place in several layers of rows and columns."""
WIDTHS = frozenset(("hidden", "heads", "ffn", "vocabulary", "transformed"))
"""Dimensions of activations beside tokens: each tensor has one of them; `transformed` is that of BERT's head, read as hidden."""


class MeshStrategy(Strategy):
    """A layout on a mesh of rows, columns and, in some, a depth."""

    dims = WIDTHS

    @abc.abstractmethod
    def shapes(self, ranks: int) -> list[tuple[int, ...]]:
        """Return the shapes (rows, columns, depth) that so many ranks may have, the usual one first; [] if none."""

    def mesh(self, ranks: int, shape: tuple[int, ...] | None = None) -> tuple[tuple[str, int], ...]:
        """See `Strategy.mesh`."""
        known = self.shapes(ranks)
        if ranks > 1 and (not known or (shape is not None and shape not in known)):
            given = f"tensor_parallel = {ranks}" + (f" and tensor_mesh = {list(shape)}" if shape else "")
            if known:
                way = f"Nearest: tensor_mesh = {' or '.join(str(list(k)) for k in known)}."
            else:
                near = min((n for n in range(2, 2 * ranks + 8) if self.shapes(n)), key=lambda n: (abs(n - ranks), n))
                way = f"Nearest: tensor_parallel = {near}, tensor_mesh = {list(self.shapes(near)[0])}."
            raise LayoutError(f"layout {self.name!r} needs {self.needs}, but {given}. {way}")
        rows, cols, *depth = shape or (known[0] if ranks > 1 else (1,) * len(self.axes))
        sizes = {ROWS: rows, COLS: cols, DEPTH: math.prod(depth)}
        return tuple((axis, sizes[axis]) for axis in self.axes)

    needs: str
    """The shapes that there are, in words."""
