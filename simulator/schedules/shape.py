"""The size of a pipeline: what placements, orders and schedules are made for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.errors import PlanError

__all__ = ["Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How many ranks, microbatches and chunks a schedule is made for.

    Args:
        ranks: pipeline ranks p.
        microbatches: microbatches m of one step.
        chunks_per_rank: chunks v that each rank holds of one lane.

    Raises:
        PlanError: one of them is not a whole number >= 1.

    >>> print(Shape(4, 8))
    ranks=4, microbatches=8, chunks_per_rank=1
    """

    ranks: int
    microbatches: int
    chunks_per_rank: int = 1

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise PlanError(f"{name} of a pipeline is a whole number >= 1: got {value!r}; the least is 1")

    def __str__(self) -> str:
        return f"ranks={self.ranks}, microbatches={self.microbatches}, chunks_per_rank={self.chunks_per_rank}"
