"""How a chain of layers runs backward when not all that backwards read is kept: a table of turns, each made of forwards and backwards.

A layer's backward reads what its forward made inside.  Where that is not kept, its forward runs again from the input of a layer before it
whose input stands.  A turn is one such piece of a backward:

    start   advance ... | store, advance ... | first .. last run forward, keeping all, and at once backward

Plans of the same kind: every layer from its own input, n layers from one input, a part of the layers, halves of halves (log2 L inputs),
and the order of fewest forwards with room for c inputs (Revolve).  An input stands from where it is stored to the end of its turn.

Sources: Griewank and Walther, Algorithm 799 (ACM TOMS 26, 2000): least repeats t(L, c) and the recursion below; Chen et al., arXiv
1604.06174: groups of layers and their recursion; Walther and Griewank, "Optimal checkpointing for unequal steps": the same recursion
over sums of times.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

__all__ = ["Reversal", "Turn", "each", "every", "first", "groups", "halves", "least_repeats", "revolve"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece of a backward.

    Args:
        first, last: layers whose forwards keep all, and whose backwards follow.
        start: the layer from whose stored input forwards run, `first` at most.
        stores: layers behind `start` whose inputs are stored on the way, in order.
        again: whether the forward of `first` to `last` runs again; False = it kept all when it ran first.
    """

    first: int
    last: int
    start: int
    stores: tuple[int, ...] = ()
    again: bool = True


@dataclass(frozen=True, slots=True)
class Reversal:
    """A plan of a backward.

    Args:
        layers: of the chain.
        stored: layers whose inputs stand when the forward has ended, in order.
        turns: of the backward, in order: the last layers first.
    """

    layers: int
    stored: tuple[int, ...]
    turns: tuple[Turn, ...]

    @property
    def repeats(self) -> int:
        """Forwards of single layers that run again."""
        return sum(turn.first - turn.start + turn.again * (turn.last - turn.first + 1) for turn in self.turns)

    @property
    def keeps(self) -> tuple[bool, ...]:
        """Of each layer whether it keeps all that its backward reads."""
        kept = {layer for turn in self.turns if not turn.again for layer in range(turn.first, turn.last + 1)}
        return tuple([layer in kept for layer in range(self.layers)])

    def standing(self) -> Iterator[tuple[Turn, frozenset[int]]]:
        """Yield each turn with the layers whose inputs stand in it at most, those that it stores among them."""
        held = set(self.stored)
        for turn in self.turns:
            held.update(turn.stores)
            yield turn, frozenset(held)
            held.difference_update(range(turn.first, turn.last + 1))

    @property
    def most(self) -> int:
        """Inputs that stand at once."""
        return max((len(held) for _, held in self.standing()), default=0)


def groups(layers: int, size: int) -> Reversal:
    """Return all layers, so many at a time from the input of the first of them.

    >>> groups(5, 2).stored, [(turn.first, turn.last) for turn in groups(5, 2).turns]
    ((0, 2, 4), [(4, 4), (2, 3), (0, 1)])
    """
    starts = range(0, layers, size)
    return Reversal(layers, tuple(starts), tuple([Turn(at, min(at + size, layers) - 1, at) for at in reversed(starts)]))


def each(layers: int) -> Reversal:
    """Return every layer from its own input."""
    return groups(layers, 1)


def _part(layers: int, repeats: Callable[[int], bool]) -> Reversal:
    """Some layers from their own inputs; the others keep all."""
    again = tuple([layer for layer in range(layers) if repeats(layer)])
    return Reversal(layers, again, tuple([Turn(i, i, i, again=repeats(i)) for i in reversed(range(layers))]))


def first(layers: int, count: int) -> Reversal:
    """Return so many layers, the first ones, from their own inputs."""
    return _part(layers, lambda layer: layer < count)


def every(layers: int, n: int) -> Reversal:
    """Return every n-th layer from its own input."""
    return _part(layers, lambda layer: (layer + 1) % n == 0)


def least_repeats(layers: int, stored: int) -> int:
    """Return t(L, c): forwards of single layers that run again at least, with room for c inputs, the chain's own among them.

    t(L, c) = r L - C(c + r, c + 1) with r the smallest with C(c + r, c) >= L; the last layer keeps all when it runs first.

    >>> [least_repeats(*of) for of in ((10, 3), (12, 3), (24, 4), (48, 5), (96, 6), (96, 9))]
    [15, 21, 51, 116, 264, 222]
    """
    rounds = 0
    while math.comb(stored + rounds, stored) < layers:
        rounds += 1
    return rounds * layers - math.comb(stored + rounds, stored + 1)


def halves(layers: int) -> Reversal:
    """Return the recursion by halves: the input of the middle is stored, behind it the same again, then before it.

    About log2 L inputs stand, and L / 2 log2 L forwards run again.

    >>> halves(8).stored, halves(8).most, halves(8).repeats
    ((0, 4, 6), 3, 12)
    """
    return _planned(layers, lambda start, end, held: ((start + end + 1) // 2, True))


def revolve(times: Sequence[float], sizes: Sequence[float], room: float) -> Reversal:
    """Return the plan with the least work run again that keeps inputs of so much size at once at most.

    Args:
        times: of each layer's forward, in one unit.
        sizes: of each layer's input, in another.
        room: for inputs, in that of sizes; the first one's at least.

    >>> plan = revolve([1] * 10, [1] * 10, 3)
    >>> plan.stored, plan.repeats, plan.most
    ((0, 4, 7), 15, 3)
    """
    if len(set(times)) == len(set(sizes)) == 1:
        return _equal(len(times), int(room / sizes[0] * (1 + _ROUNDING)))
    best = _Least(tuple(times), tuple(sizes))
    return _planned(len(times), lambda start, end, held: best.at(start, end, room, held))


_ROUNDING = 1e-12
Where = Callable[[int, int, Sequence[int]], tuple[int, bool]]
"""(start, end, layers whose inputs stand) -> the layer up to which forwards run first, and whether its input is stored."""


def _planned(layers: int, where: Where) -> Reversal:
    """The plan that a recursion makes: layers from `start` to `end` run backward once the input of `start` stands."""
    held, turns, pending = [0], list[Turn](), [(0, layers)]
    stored: tuple[int, ...] = ()
    while pending:
        start, end = pending.pop()
        at, fresh = start, list[int]()
        while end - at > 1:
            middle, stores = where(at, end, held)
            if not stores or middle == end - 1:  # what runs at once need not be stored
                break
            pending.append((at, middle))
            held.append(middle)
            fresh.append(middle)
            at = middle
        if turns:
            turns.append(Turn(end - 1, end - 1, start, tuple(fresh)))
        else:
            stored = (0, *fresh)
            turns.append(Turn(end - 1, end - 1, end - 1, again=False))
        if end - 1 > at:
            pending.append((at, end - 1))
        else:
            held.remove(at)
    return Reversal(layers, stored, tuple(turns))


@functools.lru_cache(maxsize=256)
def _equal(layers: int, room: int) -> Reversal:
    """The plan of equal layers: each cut where t(m, c) + m + t(L - m, c - 1) is least."""

    def where(start: int, end: int, held: Sequence[int]) -> tuple[int, bool]:
        length, left = end - start, room - len(held)
        if left < 1:
            return end - 1, False
        least = min(range(1, length), key=lambda m: least_repeats(m, left + 1) + m + least_repeats(length - m, left))
        return start + least, True

    return _planned(layers, where)


class _Piece(NamedTuple):
    """What is best for a piece of a chain with any room from `low` to below `high`: as it was found with one of these.

    `work` runs again; forwards run to `middle` first, whose input is stored if `stores`.
    """

    work: float
    middle: int
    stores: bool
    low: float
    high: float


_AT_ONCE = _Piece(0.0, 0, False, 0, math.inf)
"""A single layer: it is turned as soon as its input stands."""


class _Least:
    """Dynamic programme over pieces of a chain and what room there is.

    t(i, j, s) = min over m of  w(i..m) + t(m, j, s - size(m)) + t(i, m, s)  where the input of m is stored and has room s, or of
    w(i..j-1) + t(i, j - 1, s), where none is: forwards run from i to the last layer alone.

    Rooms are sums of sizes, of which there are more than can be looked at; but t falls in steps, and an answer holds from the least room
    that it needs up to the room at which any other could do as well.  Cuts are tried from the one that could be best; one is left out
    where it could not be as good: pieces do at least the work that they do with more room, and that of a forward over all their layers.
    """

    def __init__(self, times: tuple[float, ...], sizes: tuple[float, ...]) -> None:
        self._before: list[float] = np.concatenate([[0.0], np.cumsum(times)]).tolist()
        self._sizes = [_ticks(size) for size in sizes]
        self._known: dict[tuple[int, int], tuple[list[float], list[_Piece]]] = {}

    def at(self, start: int, end: int, room: float, held: Sequence[int]) -> tuple[int, bool]:
        """Return the layer up to which forwards run first, and whether its input is stored.

        Args:
            room: for inputs; `held`: those that stand in it already.
        """
        best = self._best(start, end, _ticks(room) - sum(self._sizes[i] for i in held))
        return best.middle, best.stores

    def _best(self, start: int, end: int, room: float) -> _Piece:
        if end - start < 2:
            return _AT_ONCE
        lows, pieces = self._known.setdefault((start, end), ([], []))
        place = bisect.bisect_right(lows, room)
        if place and room < pieces[place - 1].high:
            return pieces[place - 1]
        limit = pieces[place - 1].work * (1.0 + _TIES) if place else math.inf  # more room takes no more work
        high, best = math.inf, _Piece(math.inf, end, False, room, math.inf)
        bounds, closed = self._bounds(start, end, room, limit)
        for bound, middle, valid, sure in bounds:
            if bound > limit:
                high = min(high, math.inf if sure > limit else valid)
                continue
            size, stores = self._sizes[middle], middle < end - 1
            ahead, behind = self._best(start, middle, room), self._best(middle, end, room - size if stores else room)
            work = self._before[middle] - self._before[start] + behind.work + ahead.work
            low = max(behind.low + size, ahead.low) if stores else ahead.low
            found = _Piece(work, middle, stores, low, min(behind.high + size, ahead.high))
            high = min(high, found.high)
            if found < best:
                best, limit = found, found.work * (1.0 + _TIES)
        best = best._replace(high=min(high, closed))
        first, last = bisect.bisect_left(lows, best.low), bisect.bisect_right(lows, room)
        lows[first:last], pieces[first:last] = [best.low], [best]
        return best

    def _bounds(
        self, start: int, end: int, room: float, limit: float
    ) -> tuple[list[tuple[float, int, float, float]], float]:
        """Return of each cut that may be within the limit (least work, layer, room up to which that is so, least work with any room),
        the least first; and the least room that opens another."""
        before, closed, out = self._before, math.inf, []
        once = before[end - 1] - before[start]
        for middle in range(start + 1, end):
            sure = once + before[middle - 1] - before[start]
            if sure > limit:
                break
            ahead, ahead_valid = self._floor(start, middle, room)
            if middle == end - 1:
                out.append((once + ahead, middle, ahead_valid, sure))
            elif (size := self._sizes[middle]) > room:
                closed = min(closed, size)
            else:
                behind, valid = self._floor(middle, end, room - size)
                work = before[middle] - before[start] + behind + ahead
                out.append((work, middle, min(valid + size, ahead_valid), sure))
        out.sort()
        return out, closed

    def _floor(self, start: int, end: int, room: float) -> tuple[float, float]:
        """Return (work that a piece takes at least, room up to which that is known)."""
        if end - start < 2:
            return 0.0, math.inf
        lows, pieces = self._known.get((start, end), ((), ()))
        place = bisect.bisect_right(lows, room)
        if place and room < (found := pieces[place - 1]).high:
            return found.work, found.high
        if place < len(pieces):
            return pieces[place].work, pieces[place].high
        return self._before[end - 1] - self._before[start], math.inf


_FINEST, _TIES = Fraction(1, 10**9), 1e-9
"""The least part of a size that counts; sums of times that differ by so little, of one, may be equal."""


def _ticks(size: float) -> int:
    """A size as a whole number of parts of a billion, so that sums of sizes are exact.

    >>> _ticks(0.1) * 3 == _ticks(0.3) == _ticks(0.1 + 0.2)
    True
    """
    return round(Fraction(size) / _FINEST)
