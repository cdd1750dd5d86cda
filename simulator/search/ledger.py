"""What became of the plans of a space, a few bytes for each: columns as long as the space, not objects by the million.

Plans that are alike in what decides over them are written down together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.search.space import Space

__all__ = ["Count", "Ledger", "Noted"]

Value = TypeVar("Value")

_OPEN, _REFUSED, _LARGE, _LOOKED, _BOUNDED = range(5)


class Count(NamedTuple):
    """Plans that are refused, too large, and that anything is known of; and their least bound, None where none has one."""

    refused: int
    large: int
    known: int
    least: float | None


class Noted(Mapping[int, Value]):
    """Plans of some fates, by number; changes as the ledger does."""

    def __init__(self, fates: NDArray[np.uint8], which: tuple[int, ...], value: Callable[[int], Value]) -> None:
        self._fates, self._which, self._value = fates, which, value

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < len(self._fates) and int(self._fates[number]) in self._which

    def __getitem__(self, number: int) -> Value:
        if number not in self:
            raise KeyError(number)
        return self._value(number)

    def __len__(self) -> int:
        return sum(int(np.count_nonzero(self._fates == fate)) for fate in self._which)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Their numbers, in order."""
        return np.flatnonzero(np.isin(self._fates, self._which))


class Ledger:
    """The columns of a space.

    Attributes:
        refused: number -> why a plan cannot be.
        large: number -> the least part of the GPU that a plan without room fills.
        bounds: number -> what the objective is at least, of the others that were looked at; `bounded`: of those that nobody has to
            simulate.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._shape = tuple(len(values) for values in space.ranges.values())
        self._fates = np.zeros(space.size, np.uint8)
        self._figures = np.zeros(space.size)
        self._why = np.zeros(space.size, np.int32)
        self._reasons: dict[str, int] = {}
        self._said: list[str] = []
        self.refused = Noted(self._fates, (_REFUSED,), lambda number: self._said[self._why[number]])
        self.large = Noted(self._fates, (_LARGE,), lambda number: float(self._figures[number]))
        self.bounds = Noted(self._fates, (_LOOKED, _BOUNDED), lambda number: float(self._figures[number]))
        self.bounded = Noted(self._fates, (_BOUNDED,), lambda number: float(self._figures[number]))
        self.open = Noted(self._fates, (_OPEN,), lambda number: None)

    def is_open(self, number: int) -> bool:
        """Whether nothing is known of a plan."""
        return not self._fates[number]

    def refuse(self, number: int, reason: str, others: Mapping[str, Sequence[int]] = MappingProxyType({})) -> None:
        """Write down why a plan cannot be; and so all that differ from it in nothing but some `others`.

        Args:
            others: field -> numbers of values that it has in these plans; it may have its own, too.
        """
        why = self._reasons.setdefault(reason, len(self._said))
        if why == len(self._said):
            self._said.append(reason)
        self._write(number, others, _REFUSED, why=why)

    def too_large(self, number: int, full: float, others: Mapping[str, Sequence[int]] = MappingProxyType({})) -> None:
        """Write down that a plan fills more of the GPU than it may, at least this part; and so, as `refuse` has them, `others`."""
        self._write(number, others, _LARGE, figure=full)

    def bound(self, number: int, least: float, others: Mapping[str, Sequence[int]] = MappingProxyType({})) -> None:
        """Write down what the objective of a plan is at least; and so, as `refuse` has them, of `others`."""
        self._write(number, others, _LOOKED, figure=least)

    def dispose(self, numbers: NDArray[np.int64]) -> None:
        """Write down that nobody has to simulate these."""
        self._fates[numbers] = _BOUNDED

    def least(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the bounds of some plans that were looked at."""
        return self._figures[numbers]

    def waiting(self, but: Collection[int]) -> NDArray[np.float64]:
        """Return the bounds of the plans, others than `but`, that were looked at and nobody disposed of."""
        mine = self._fates == _LOOKED
        mine[list(but)] = False
        return np.asarray(self._figures[mine], np.float64)

    def reasons(self, field: str = "", place: int = 0) -> dict[str, int]:
        """Return reason -> how many plans are refused for it, in the order in which they were met; of those with a value of a field.

        Args:
            field, place: which, and which of its values; "" = all plans.
        """
        mine = self._having(self._fates, field, place) == _REFUSED
        counts = np.bincount(self._having(self._why, field, place)[mine], minlength=len(self._said))
        return {reason: int(count) for reason, count in zip(self._said, counts.tolist(), strict=True) if count}

    def counts(self, but: Collection[int]) -> dict[tuple[str, int], Count]:
        """Return (field, number of a value) -> what became of the plans that have it; the least bound is that of others than `but`."""
        looked = (self._fates == _LOOKED) | (self._fates == _BOUNDED)
        least = np.where(looked, self._figures, np.inf)
        least[list(but)] = np.inf
        out = {}
        for field, values in self._space.ranges.items():
            for place in range(len(values)):
                fates = self._having(self._fates, field, place)
                refused, large, known = (int(np.count_nonzero(f)) for f in (fates == _REFUSED, fates == _LARGE, fates))
                lowest = float(self._having(least, field, place).min())
                out[field, place] = Count(refused, large, known, lowest if math.isfinite(lowest) else None)
        return out

    def _having(self, column: NDArray[Any], field: str, place: int) -> NDArray[Any]:
        """A column of the plans that have a value of a field; "" = of all."""
        if not field:
            return column
        axis = list(self._space.ranges).index(field)
        return column.reshape(self._shape)[(slice(None),) * axis + (place,)]

    def _write(
        self, number: int, others: Mapping[str, Sequence[int]], fate: int, figure: float = 0.0, why: int = 0
    ) -> None:
        mine = np.append(self._still_open(number, others), number) if others else number
        self._fates[mine], self._figures[mine], self._why[mine] = fate, figure, why

    def _still_open(self, number: int, others: Mapping[str, Sequence[int]]) -> NDArray[np.int64]:
        """Plans of which nothing is known that differ from one in nothing but some fields."""
        found = np.array([number])
        for field, places in others.items():
            steps = np.array(places, np.int64) - self._space.place(number, field)
            found = np.add.outer(found, self._space.strides[field] * steps).ravel()
        return np.asarray(found[self._fates[found] == _OPEN], np.int64)
