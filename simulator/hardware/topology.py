"""The switches between domains, and the world ranks of groups that share them: plain numbers, so that prices can be remembered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lattice", "Topology", "offsets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which switches lie between the domains.

    Args:
        by_rail: leaf r holds card r of the domains of a pod; otherwise a leaf holds all their cards.
        domains_per_pod: domains that hang on the same leaves.
        oversubscription: bandwidth into a leaf over bandwidth out of it to the spine (>= 1).
        proxies: bytes for another rail cross inside the node first (PXN).
        rails: network cards of a domain, bundled where it has more cards than GPUs.
    """

    by_rail: bool
    domains_per_pod: int
    oversubscription: float
    proxies: bool
    rails: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """The world ranks of all groups of one kind: first + sums of coordinate x stride.

    Args:
        members: (size, stride) of the axes inside a group, innermost first.
        groups: (size, stride) of the axes that tell groups apart.
        first: rank of the first member of the first group.

    >>> Lattice(members=((2, 8),), groups=((3, 1),)).ranks().tolist()
    [[0, 8], [1, 9], [2, 10]]
    """

    members: tuple[tuple[int, int], ...]
    groups: tuple[tuple[int, int], ...] = ()
    first: int = 0

    def ranks(self) -> NDArray[np.int64]:
        """Return [groups, members]."""
        return self.first + offsets(list(self.groups))[:, None] + offsets(list(self.members))[None, :]

    def sample(self, period: int) -> Lattice:
        """Return a few groups, with a few of their members, that stand for all where so many ranks are like the next so many.

        Axes of whole periods move a group to other periods or reach into them; as long as no two of their coordinates share a
        period, one coordinate tells of all groups, two of all members.  Where that is not so, or members lie in
        front of the first, all groups are returned.

        >>> Lattice(members=((2, 4096),), groups=((8, 1), (512, 8))).sample(64)
        Lattice(members=((2, 64),), groups=((8, 1), (8, 8)), first=0)
        """
        members, groups = (
            [part for size, stride in axes for part in _split(size, stride, period)]
            for axes in (self.members, self.groups)
        )
        axes = (*members, *groups)
        inside = sum(abs((size - 1) * stride) for size, stride in axes if stride % period)
        odd = any(stride % period and not 0 < stride < period for _, stride in axes)
        if odd or self.first % period + inside >= period:
            return self
        few, place = [], period
        for size, stride in members:
            few.append((size, stride) if stride % period else (min(size, 2), place))
            place *= 1 if stride % period else min(size, 2)
        return Lattice(
            members=tuple(few), groups=tuple(axis for axis in groups if axis[1] % period), first=self.first % period
        )

    def across(self, domain: int) -> Lattice | None:
        """Return the groups of ranks of equal place in their domains; None where an axis does not fit whole domains.

        >>> Lattice(members=((16, 1), (2, 16))).across(8)
        Lattice(members=((2, 8), (2, 16)), groups=((8, 1),), first=0)
        """
        members, groups = [], list(self.groups)
        for size, stride in self.members:
            if stride % domain == 0:
                members.append((size, stride))
            elif size * stride <= domain:
                groups.append((size, stride))
            elif domain % stride == 0 and size * stride % domain == 0:
                groups.append((domain // stride, stride))
                members.append((size * stride // domain, domain))
            else:
                return None
        return Lattice(members=tuple(members), groups=tuple(groups), first=self.first)


def _split(size: int, stride: int, period: int) -> list[tuple[int, int]]:
    """An axis as the part inside a period and the part over whole periods, where it has both."""
    if stride < period < size * stride and period % stride == 0 and size * stride % period == 0:
        return [(period // stride, stride), (size * stride // period, period)]
    return [(size, stride)]


def offsets(sizes: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the sums of coordinate x stride over all coordinates, ascending when strides do not interleave."""
    out = np.zeros(1, np.int64)
    for size, stride in sizes:
        out = (np.arange(size, dtype=np.int64)[:, None] * stride + out[None, :]).reshape(-1)
    return out
