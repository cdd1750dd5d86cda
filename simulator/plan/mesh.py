"""The mesh: every GPU's place along the axes tensor, data and pipeline parallel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.errors import PlanError

__all__ = ["Mesh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Axes and sizes, innermost (consecutive world ranks) first.

    >>> mesh = Mesh(axes=(("tp", 2), ("dp", 2), ("pp", 2)))
    >>> mesh.world_size, mesh.coordinates(5)
    (8, {'tp': 1, 'dp': 0, 'pp': 1})
    >>> mesh.groups("dp").tolist()
    [[0, 2], [1, 3], [4, 6], [5, 7]]
    """

    axes: tuple[tuple[str, int], ...]

    @property
    def world_size(self) -> int:
        """Number of GPUs."""
        size = 1
        for _, n in self.axes:
            size *= n
        return size

    def size(self, axis: str) -> int:
        """Members along one axis; 1 for an axis the mesh does not have."""
        return dict(self.axes).get(axis, 1)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of a world rank along every axis.

        Raises:
            PlanError: the rank is outside the world.
        """
        if not 0 <= rank < self.world_size:
            raise PlanError(f"a world rank must lie in 0..{self.world_size - 1}, but {rank} was asked for")
        out = {}
        for name, n in self.axes:
            rank, out[name] = divmod(rank, n)
        return out

    def groups(self, *names: str) -> NDArray[np.int64]:
        """Return the world ranks of every group along these axes: [groups, members]."""
        sizes = [n for _, n in reversed(self.axes)]
        grid = np.arange(self.world_size).reshape(sizes)
        order = [name for name, _ in reversed(self.axes)]
        inside = [i for i, name in enumerate(order) if name in names]
        outside = [i for i in range(len(order)) if i not in inside]
        members = int(np.prod([sizes[i] for i in inside], dtype=np.int64)) if inside else 1
        return grid.transpose(outside + inside).reshape(-1, members)
