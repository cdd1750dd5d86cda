"""Where the chunks of a model live: lanes of chunks over pipeline ranks.

A lane is one whole copy of the pipeline, first chunk to last.  Most schedules have one lane; Chimera has two in
opposite directions, so every rank holds two shares of the model.  A microbatch travels along exactly one lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.errors import PlanError
from simulator.schedules.shape import Shape

__all__ = ["Placement", "read_only"]

Whole = TypeVar("Whole", bound=np.integer)


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Pipeline rank of every chunk in every lane, and the lane of every microbatch.  Arrays are read-only.

    Args:
        rank_of: [lanes, chunks] pipeline rank; chunks are global stage numbers 0..p*v-1.
        lane_of: [microbatches] lane of each microbatch.

    Raises:
        PlanError: a rank is negative, a microbatch names a lane that is not there, or an array has the wrong shape.

    >>> Placement([[0, 1, 1, 0]], [0, 0]).ranks
    2
    """

    rank_of: NDArray[np.int32]
    lane_of: NDArray[np.int8]

    def __post_init__(self) -> None:
        try:
            rank_of, lane_of = read_only(self.rank_of, np.int32), read_only(self.lane_of, np.int8)
        except ValueError as error:
            raise PlanError(f"ranks and lanes of a placement are whole numbers: {error}; number them from 0") from None
        if rank_of.ndim != 2 or rank_of.size == 0 or rank_of.min() < 0:
            raise PlanError(
                "a placement gives every chunk of every lane a rank >= 0: "
                f"got rank_of of shape {rank_of.shape}; give one row per lane and one column per chunk"
            )
        if lane_of.ndim != 1 or (lane_of.size and not 0 <= lane_of.min() <= lane_of.max() < len(rank_of)):
            raise PlanError(
                f"a placement gives every microbatch one of its {len(rank_of)} lanes: "
                f"got lane_of {lane_of[:8].tolist()}; use lanes 0..{len(rank_of) - 1}"
            )
        object.__setattr__(self, "rank_of", rank_of)
        object.__setattr__(self, "lane_of", lane_of)

    @classmethod
    def linear(cls, shape: Shape) -> Placement:
        """Return one lane with chunk c on rank c mod p: 0123 for one chunk per rank, 01230123 for two.

        >>> Placement.linear(Shape(2, 3, 2)).rank_of.tolist()
        [[0, 1, 0, 1]]
        """
        chunks = np.arange(shape.ranks * shape.chunks_per_rank, dtype=np.int32)
        return cls((chunks % shape.ranks)[None, :], np.zeros(shape.microbatches, np.int8))

    @classmethod
    def bidirectional(cls, shape: Shape, lane_of: ArrayLike) -> Placement:
        """Return two lanes in opposite directions, 0123 and 3210; `lane_of` says which microbatch takes which.

        Raises:
            PlanError: `lane_of` has not one entry, 0 or 1, per microbatch.

        >>> Placement.bidirectional(Shape(2, 2), [0, 1]).rank_of.tolist()
        [[0, 1], [1, 0]]
        """
        lanes: NDArray[np.int8] = np.asarray(lane_of)
        if lanes.shape != (shape.microbatches,):
            raise PlanError(
                f"every microbatch takes one lane: got {lanes.size} lanes for {shape.microbatches} microbatches; "
                "give one 0 or 1 per microbatch"
            )
        down = np.arange(shape.ranks * shape.chunks_per_rank, dtype=np.int32) % shape.ranks
        return cls(np.stack([down, down[::-1]]), lanes)

    @classmethod
    def zigzag(cls, shape: Shape) -> Placement:
        """Return one lane that goes down and up the ranks in turn: 0123 3210 for two chunks per rank, a V.

        >>> Placement.zigzag(Shape(2, 1, 3)).rank_of.tolist()
        [[0, 1, 1, 0, 0, 1]]
        """
        turn, place = np.divmod(np.arange(shape.ranks * shape.chunks_per_rank, dtype=np.int32), shape.ranks)
        rank_of = np.where(turn % 2, shape.ranks - 1 - place, place)
        return cls(rank_of[None, :], np.zeros(shape.microbatches, np.int8))

    def repeated(self, steps: int) -> Placement:
        """Return the placement of `steps` steps after one another, microbatches numbered through.

        >>> Placement.linear(Shape(2, 3)).repeated(2).microbatches
        6
        """
        return Placement(self.rank_of, np.tile(self.lane_of, steps))

    @property
    def lanes(self) -> int:
        """Number of lanes: copies of the pipeline."""
        return int(self.rank_of.shape[0])

    @property
    def chunks(self) -> int:
        """Number of chunks in one lane."""
        return int(self.rank_of.shape[1])

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return int(self.rank_of.max()) + 1

    @property
    def microbatches(self) -> int:
        """Number of microbatches in one step."""
        return len(self.lane_of)

    def weight_copies(self) -> NDArray[np.int64]:
        """Return, per rank, how many whole shares of the weights it holds: one for every lane that passes through it.

        >>> Placement.bidirectional(Shape(4, 2), [0, 1]).weight_copies().tolist()
        [2, 2, 2, 2]
        """
        copies = np.zeros(self.ranks, np.int64)
        for lane in self.rank_of:
            copies[np.unique(lane)] += 1
        return copies

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return np.array_equal(self.rank_of, other.rank_of) and np.array_equal(self.lane_of, other.lane_of)

    __hash__ = None  # type: ignore[assignment]


def read_only(values: ArrayLike, dtype: type[Whole]) -> NDArray[Whole]:
    """Return a read-only copy of `values` as whole numbers of this type.

    Raises:
        ValueError: a value does not fit; it is not wrapped or rounded.

    >>> read_only([1, 2], np.int8)
    array([1, 2], dtype=int8)
    """
    try:
        given = np.asarray(values)
        out = given.astype(dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(str(error)) from None
    if given.dtype != out.dtype and not np.array_equal(given, out):
        wrong = given[given != out].ravel()[:3].tolist()
        raise ValueError(f"{wrong} do not fit in {np.dtype(dtype)}")
    out.flags.writeable = False
    return out
