"""PyTorch's caching allocator of device memory, as far as it decides how much is held: blocks of one stream, large ones alone.

A request is rounded up to 512 B and gets the smallest free block that is large enough, which is split if more than 1 MiB is left.  If
there is none, a new segment is asked of the driver: 20 MiB for a request under 10 MiB, else whole pieces of 2 MiB; with *expandable
segments* the one segment grows at its end by whole pieces of 20 MiB.  What is given back joins free neighbours in its segment; segments
stay.  Requests under 1 MiB live in segments of their own, of which there are few, and count as they are asked.

Source: pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp (kMinBlockSize, kSmallSize, kMinLargeAlloc, kLargeBuffer, kRoundLarge;
should_split).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

__all__ = ["Block", "CachingAllocator"]

_ROUNDING = 512
_SMALL = 2**20
_MIDDLE = 10 * 2**20
_PIECE, _LARGE_PIECE = 2 * 2**20, 20 * 2**20


class Block(NamedTuple):
    """Where a request lies: its segment (-1: among the small ones), its start there and its size [B]."""

    segment: int
    start: int
    size: int


class CachingAllocator:
    """Segments and the blocks in them.

    Args:
        expandable: whether there is one segment that grows.

    >>> memory = CachingAllocator()
    >>> one, other = (memory.ask(size * 2**20) for size in (100, 30))
    >>> memory.give_back(one)
    >>> _ = memory.ask(60 * 2**20), memory.ask(60 * 2**20)  # the rest of the place of 100 is too small for the second
    >>> memory.held // 2**20, memory.asked // 2**20, memory.most_asked // 2**20
    (190, 150, 150)
    """

    def __init__(self, expandable: bool = False) -> None:
        self.held = self.asked = self.most_held = self.most_asked = 0
        self._expandable = expandable
        self._free: list[tuple[int, int, int]] = []
        self._size: dict[tuple[int, int], int] = {}
        self._is_free: dict[tuple[int, int], bool] = {}
        self._starts: list[list[int]] = []

    def ask(self, size: float) -> Block:
        """Return a place of so many bytes."""
        wanted = max(1, -int(-size // _ROUNDING)) * _ROUNDING
        if wanted < _SMALL:
            segment, start = -1, 0
        else:
            segment, start = self._found(wanted)
        self.asked += wanted
        self.most_asked, self.most_held = max(self.most_asked, self.asked), max(self.most_held, self.held)
        return Block(segment, start, wanted)

    def give_back(self, block: Block) -> None:
        """Take a place back; what lies free beside it becomes one with it."""
        segment, start, size = block
        self.asked -= size
        if segment < 0:
            return
        starts = self._starts[segment]
        at = bisect_left(starts, start)
        size = self._size[segment, start]
        if at + 1 < len(starts) and self._is_free[segment, starts[at + 1]]:
            size += self._forget(segment, at + 1)
        if at and self._is_free[segment, starts[at - 1]]:
            start = starts[at - 1]
            del starts[at], self._size[segment, block.start], self._is_free[segment, block.start]
            size += self._size[segment, start]
            del self._free[bisect_left(self._free, (self._size[segment, start], segment, start))]
        self._set(segment, start, size, free=True)

    def _found(self, wanted: int) -> tuple[int, int]:
        """The place of a large request, cut to its size."""
        at = bisect_left(self._free, (wanted, -1, -1))
        if at < len(self._free):
            size, segment, start = self._free.pop(at)
        else:
            segment, start, size = self._grown(wanted) if self._expandable else self._new(wanted)
        rest = size - wanted
        if rest > _SMALL:
            insort(self._starts[segment], start + wanted)
            self._set(segment, start + wanted, rest, free=True)
            size = wanted
        self._set(segment, start, size, free=False)
        return segment, start

    def _new(self, wanted: int) -> tuple[int, int, int]:
        size = _LARGE_PIECE if wanted < _MIDDLE else -(-wanted // _PIECE) * _PIECE
        self._starts.append([0])
        self.held += size
        return len(self._starts) - 1, 0, size

    def _grown(self, wanted: int) -> tuple[int, int, int]:
        """The end of the one segment, made long enough."""
        if not self._starts:
            self._starts.append([])
        starts = self._starts[0]
        size, end = 0, 0
        if starts:
            end = starts[-1] + self._size[0, starts[-1]]
            if self._is_free[0, starts[-1]]:
                end = starts[-1]
                size = self._forget(0, len(starts) - 1)
        more = -(-(wanted - size) // _LARGE_PIECE) * _LARGE_PIECE
        starts.append(end)
        self.held += more
        return 0, end, size + more

    def _forget(self, segment: int, at: int) -> int:
        """Take a free block out of everything; returns its size."""
        start = self._starts[segment].pop(at)
        size = self._size.pop((segment, start))
        del self._is_free[segment, start]
        del self._free[bisect_left(self._free, (size, segment, start))]
        return size

    def _set(self, segment: int, start: int, size: int, free: bool) -> None:
        self._size[segment, start], self._is_free[segment, start] = size, free
        if free:
            insort(self._free, (size, segment, start))
