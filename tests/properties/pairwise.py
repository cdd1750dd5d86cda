"""A generator of cases that meet every pair of choices at least once (all-pairs testing), where a pair is possible at all.

Greedy: every case starts from a pair that no case has met, is completed at random many times over, and the completion that is
possible and meets most unmet pairs is taken.  A pair that no completion makes possible is given up (and can be asked for).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Case = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]


class Pairwise:
    """All pairs of the values of some factors.

    Args:
        factors: name -> values.
        possible: whether a case can be.
        tries: completions of a pair before it is given up.
        never: whether two choices alone are ruled out, so that no completion needs trying.
        enough: possible completions among which the best is taken.
    """

    def __init__(
        self,
        factors: Mapping[str, Sequence[Any]],
        possible: Callable[[Case], bool],
        tries: int = 4000,
        never: Callable[[Case], bool] = lambda pair: False,
        enough: int = 6,
        seed: int = 0,
    ) -> None:
        self.never = never
        self.factors = {name: list(values) for name, values in factors.items()}
        self.possible, self.tries, self.enough = possible, tries, enough
        self.random = random.Random(seed)
        self.impossible: set[Pair] = set()

    def _pairs(self, places: Mapping[str, int]) -> set[Pair]:
        return set(itertools.combinations(sorted(places.items()), 2))

    def cases(self) -> Iterator[Case]:
        """Yield the cases."""
        names = sorted(self.factors)
        left: set[Pair] = set()
        for a, b in itertools.combinations(names, 2):
            left |= {((a, i), (b, j)) for i in range(len(self.factors[a])) for j in range(len(self.factors[b]))}
        order = sorted(left)
        self.random.shuffle(order)
        for pair in order:
            if pair not in left:
                continue
            if self.never({name: self.factors[name][i] for name, i in pair}):
                left.discard(pair)
                continue
            best = self._best(pair, left)
            if best is None:
                self.impossible.add(pair)
                left.discard(pair)
                continue
            left -= self._pairs(best)
            yield self._case(best)

    def _best(self, pair: Pair, left: set[Pair]) -> dict[str, int] | None:
        """The possible completion of a pair that meets most of those left; None if none is found."""
        found: list[tuple[int, dict[str, int]]] = []
        for _ in range(self.tries):
            places = {name: self.random.randrange(len(values)) for name, values in self.factors.items()}
            places.update(pair)
            if self.possible(self._case(places)):
                found.append((len(self._pairs(places) & left), places))
                if len(found) >= self.enough:
                    break
        return max(found, key=lambda one: one[0])[1] if found else None

    def _case(self, places: Mapping[str, int]) -> Case:
        return {name: self.factors[name][i] for name, i in places.items()}

    def said(self, pair: Pair) -> str:
        """A pair in words."""
        return " with ".join(f"{name} = {self.factors[name][i]!r}" for name, i in pair)
