"""A two-dimensional torus: rings along rows and columns of a grid that is as square as the ranks allow.

2 (x + y) hops instead of 2 x y.  The grid takes no notice of nodes: a row of 16 ranks crosses two nodes of 8.
"""

from __future__ import annotations

import math

from simulator.collectives.two_level import TwoLevel
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Torus"]


class Torus(TwoLevel):
    """Rings along the rows and columns of a square grid of ranks."""

    name = "torus"
    aliases = ("torus_2d", "2d_torus")
    source = "Mikami et al., arXiv 1811.05233 (2D-torus all-reduce; from memory, unverified)"

    def grid(self, place: GroupPlacement) -> tuple[int, int]:
        """Return the most nearly square grid, rows longer than columns."""
        rows = next(k for k in range(math.isqrt(place.ranks), 0, -1) if place.ranks % k == 0)
        return place.ranks // rows, rows
