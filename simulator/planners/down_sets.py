"""Ideals of a graph: sets of nodes that hold whatever their members read."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["ideals_of", "subsets"]


def ideals_of(count: int, edges: Iterable[tuple[int, int]], most: int) -> NDArray[np.bool_] | None:
    """Return (ideals, nodes) the members of each, small ones first; None where there are more than `most`.

    Args:
        count: of nodes.
        edges: (read, reader), without circles.

    >>> ideals_of(3, [(0, 2), (1, 2)], most=5).astype(int).tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    reads = [0] * count
    for a, b in edges:
        reads[b] |= 1 << a
    found, layer = [0], [0]
    while layer:
        following: dict[int, None] = {}
        for ideal in layer:
            for node in range(count):
                if not ideal >> node & 1 and not reads[node] & ~ideal:
                    following[ideal | 1 << node] = None
        layer = list(following)
        found += layer
        if len(found) > most:
            return None
    width = max(1, -(-count // 8))
    raw = np.frombuffer(b"".join(ideal.to_bytes(width, "little") for ideal in found), np.uint8).reshape(-1, width)
    return np.unpackbits(raw, axis=1, bitorder="little")[:, :count].astype(bool)


def subsets(ideals: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return (ideals, ideals) whether the first is a smaller one inside the second.

    Args:
        ideals: (ideals, nodes) members of each.
    """
    numbers = ideals.astype(np.int32)
    sizes = numbers.sum(axis=1)
    return np.asarray((numbers @ numbers.T == sizes[:, None]) & (sizes[:, None] < sizes[None, :]))
