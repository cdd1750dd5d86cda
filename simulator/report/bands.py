"""Whether 80 % bands hold what they say, group by group: points of one group err together, so a sum over all hides much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["EVEN", "HEADINGS", "BandScores", "judge_bands"]

EVEN = (0.75, 0.88)
"""Share of a group's points inside an 80 % band that is as it should be, up to chance [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandScores:
    """How bands that were made for one thing hold.

    Args:
        band_of: what they were made for.
        groups: sources, or logs, with such points.
        even, above, below: of these, groups with 75 to 88 % of their points inside, with more, with fewer.
        coverage: share of all points inside [1].
        width: median of high / low [1].
    """

    band_of: str
    groups: int
    even: int
    above: int
    below: int
    coverage: float
    width: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table with the headings of `HEADINGS`."""
        counts = (str(number) for number in (self.groups, self.even, self.above, self.below))
        return (self.band_of, *counts, f"{100 * self.coverage:.0f} %", f"{self.width:.2f}")


HEADINGS = ("80 % band of", "groups", "75 to 88 % inside", "more", "fewer", "of all points", "high / low")


def judge_bands(band_of: str, groups: Sequence[Sequence[tuple[bool, float]]]) -> BandScores:
    """Return the scores of bands; of each group's points: whether it lies inside, and high / low of its band.

    >>> judge_bands("own log", [[(True, 1.1)] * 4 + [(False, 1.1)]]).even
    1
    """
    shares = [sum(held for held, _ in points) / len(points) for points in groups]
    points = [point for group in groups for point in group]
    return BandScores(
        band_of=band_of,
        groups=len(shares),
        even=sum(EVEN[0] <= share <= EVEN[1] for share in shares),
        above=sum(share > EVEN[1] for share in shares),
        below=sum(share < EVEN[0] for share in shares),
        coverage=sum(held for held, _ in points) / max(len(points), 1),
        width=float(np.median([width for _, width in points])) if points else 1.0,
    )
