"""Who does what in which order: actions, and the order of all ranks as three columns.

The text form is one line per rank with comma-separated cells such as `2F0`: stage, kind, microbatch.  It is the
compute-only form that `torch.distributed.pipelining` reads and writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.errors import ProgramError
from simulator.schedules.placement import Placement, read_only

__all__ = ["KINDS", "Action", "B", "F", "I", "PipelineOrder", "W", "warm_up_then_pairs"]

KINDS = "FBIW"
"""Forward, whole backward, its input-gradient half, its weight-gradient half; the columns hold the index."""

_LARGEST = 2**31 - 1
_ACTION = re.compile(r"([0-9]{1,10})([FBIW])([0-9]{1,10})", re.ASCII)
_FOREIGN = (
    (re.compile(r"SEND|RECV"), "transfers follow from the order and are added later; give compute actions only"),
    (re.compile(r"UNSHARD|RESHARD|REDUCE_GRAD"), "collectives follow from the plan; give compute actions only"),
    (re.compile(r"[();]|OVERLAP"), "fused actions are not part of this grammar; write them as separate cells"),
    (
        re.compile(r"[.+/]"),
        "parts and groups of microbatches are not part of this grammar; number them as microbatches",
    ),
)


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one rank: `kind` on one chunk (global stage number) for one microbatch.

    >>> print(Action("F", 2, 0))
    2F0
    """

    kind: Literal["F", "B", "I", "W"]
    chunk: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Return the action that `text` names; the inverse of `str`.

        Raises:
            ProgramError: the text is not stage, kind, microbatch.

        >>> Action.parse("11W3")
        Action(kind='W', chunk=11, microbatch=3)
        """
        found = _ACTION.fullmatch(text)
        if found is None or max(int(found[1]), int(found[3])) > _LARGEST:
            for pattern, reason in _FOREIGN:
                if pattern.search(text):
                    raise ProgramError(f"{text[:60]!r} is not a compute action: {reason}")
            raise ProgramError(f"an action is stage, F, B, I or W, and microbatch, such as 2F0: got {text[:60]!r}")
        return cls(found[2], int(found[1]), int(found[3]))  # type: ignore[arg-type]


def F(chunk: int, microbatch: int) -> Action:
    """Return the forward of a chunk for a microbatch."""
    return Action("F", chunk, microbatch)


def B(chunk: int, microbatch: int) -> Action:
    """Return the whole backward of a chunk for a microbatch."""
    return Action("B", chunk, microbatch)


def I(chunk: int, microbatch: int) -> Action:  # noqa: E743
    """Return the input-gradient half of a backward."""
    return Action("I", chunk, microbatch)


def W(chunk: int, microbatch: int) -> Action:
    """Return the weight-gradient half of a backward."""
    return Action("W", chunk, microbatch)


@dataclass(frozen=True, slots=True, eq=False)
class PipelineOrder:
    """The actions of all ranks, in order, as read-only columns; rank r owns entries rank_offsets[r]:rank_offsets[r+1].

    Args:
        rank_offsets: [ranks + 1].
        kind: [actions] 0 F, 1 B, 2 I, 3 W.
        chunk: [actions] global stage number 0..p*v-1.
        microbatch: [actions] 0..m-1.

    Raises:
        ProgramError: numbers too large, columns of unequal length, or offsets that do not cover them.
    """

    rank_offsets: NDArray[np.int64]
    kind: NDArray[np.int8]
    chunk: NDArray[np.int32]
    microbatch: NDArray[np.int32]

    def __post_init__(self) -> None:
        for name, dtype in (
            ("rank_offsets", np.int64),
            ("kind", np.int8),
            ("chunk", np.int32),
            ("microbatch", np.int32),
        ):
            try:
                object.__setattr__(self, name, read_only(getattr(self, name), dtype))
            except ValueError as error:
                raise ProgramError(f"{name} of an order holds whole numbers: {error}; number them from 0") from None
        sizes = {len(self.kind), len(self.chunk), len(self.microbatch)}
        offsets = self.rank_offsets
        if (
            len(sizes) > 1
            or len(offsets) < 2
            or offsets[0] != 0
            or {int(offsets[-1])} != sizes
            or (np.diff(offsets) < 0).any()
        ):
            raise ProgramError(
                f"an order has columns of one length that its rank offsets cover: got {sorted(sizes)} actions and "
                f"offsets {offsets[:4].tolist()}..{offsets[-1:].tolist()}; use from_actions or from_grid"
            )

    @classmethod
    def from_grid(cls, kind: ArrayLike, chunk: ArrayLike, microbatch: ArrayLike) -> PipelineOrder:
        """Return the order whose rank r runs row r of these arrays; they are [ranks, actions] or broadcast to it.

        >>> PipelineOrder.from_grid([[0, 1]], 0, 0).to_text()
        '0F0,0B0\\n'
        """
        grids = np.broadcast_arrays(kind, chunk, microbatch)
        ranks, actions = grids[0].shape
        return cls(np.arange(ranks + 1) * actions, *(grid.ravel() for grid in grids))

    @classmethod
    def from_actions(cls, ranks: Iterable[Iterable[Action]]) -> PipelineOrder:
        """Return the order that runs these actions, one iterable per rank.

        >>> PipelineOrder.from_actions([[F(0, 0), B(0, 0)]]).rows(0)
        [Action(kind='F', chunk=0, microbatch=0), Action(kind='B', chunk=0, microbatch=0)]
        """
        rows = [[(KINDS.index(a.kind), a.chunk, a.microbatch) for a in actions] for actions in ranks]
        flat = np.array([cell for row in rows for cell in row], np.int32).reshape(-1, 3)
        return cls(np.cumsum([0, *map(len, rows)]), flat[:, 0].astype(np.int8), flat[:, 1], flat[:, 2])

    @classmethod
    def parse(cls, text: str) -> PipelineOrder:
        """Return the order that `text` holds: one line per rank, cells separated by commas, empty cells skipped.

        Raises:
            ProgramError: a cell is no compute action, or a line holds none; names line and cell, counted from 1.

        >>> PipelineOrder.parse("0F0,,0B0\\n1F0,1B0").to_text()
        '0F0,0B0\\n1F0,1B0\\n'
        """
        ranks = []
        for number, line in enumerate(text.rstrip().splitlines(), 1):
            actions = []
            for position, cell in enumerate(line.split(","), 1):
                if not cell.strip():
                    continue
                try:
                    actions.append(Action.parse(cell.strip()))
                except ProgramError as error:
                    raise ProgramError(f"line {number}, cell {position}: {error}") from None
            if not actions:
                raise ProgramError(f"line {number}: every line is one rank with at least one action; this one is empty")
            ranks.append(actions)
        if not ranks:
            raise ProgramError("an order has one line per rank, such as 0F0,0B0; the text is empty")
        return cls.from_actions(ranks)

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.rank_offsets) - 1

    @property
    def size(self) -> int:
        """Number of actions of all ranks."""
        return len(self.kind)

    @property
    def rank(self) -> NDArray[np.int32]:
        """Rank of each action."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.rank_offsets))

    def action(self, number: int) -> Action:
        """Return one action by its place in the columns."""
        kind = KINDS[int(self.kind[number])]
        return Action(kind, int(self.chunk[number]), int(self.microbatch[number]))  # type: ignore[arg-type]

    def rows(self, rank: int) -> list[Action]:
        """Return the actions of one rank, in order."""
        return [self.action(n) for n in range(int(self.rank_offsets[rank]), int(self.rank_offsets[rank + 1]))]

    def to_text(self) -> str:
        """Return the text form; `parse` is its inverse."""
        return "".join(",".join(map(str, self.rows(rank))) + "\n" for rank in range(self.ranks))

    def check(self, placement: Placement, microbatches: int) -> None:
        """Check that every chunk runs every microbatch of its lane forward and then backward, once, on its own rank.

        A backward is one B, or one I and later one W.

        Raises:
            ProgramError: an action is missing, double, misplaced or too early; the message names it.
        """
        _check_range(self, placement, microbatches)
        rank = self.rank
        home = placement.rank_of[placement.lane_of[self.microbatch], self.chunk]
        for n in np.flatnonzero(rank != home)[:1]:
            raise ProgramError(
                f"a chunk runs on the rank that holds it: {self.action(n)} stands on rank {rank[n]}, "
                f"but its lane has chunk {self.chunk[n]} on rank {home[n]}; move it there"
            )
        place = _first_places(self, placement.chunks, microbatches)
        forward, whole, inputs, weights = place
        _require_all(forward >= 0, "every chunk runs every microbatch forward once: {}F{} is missing")
        split = (inputs >= 0) | (weights >= 0)
        _require_all(~(split & (whole >= 0)), "a backward is B, or I and W: {}B{} stands beside its own I or W")
        _require_all((whole >= 0) | (inputs >= 0), "every forward has a backward: {0}B{1} (or {0}I{1}) is missing")
        _require_all(~split | (weights >= 0), "a split backward is I and then W: {}W{} is missing")
        _require_all(
            np.where(split, inputs, whole) > forward, "a backward follows its forward: that of {}F{} is too early"
        )
        _require_all(~split | (weights > inputs), "W follows I: {}W{} is too early")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PipelineOrder):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


def warm_up_then_pairs(warm_up: ArrayLike, count: int) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return kind and running number of `count` forwards and backwards: warm-up, pairs F, B, then the other backwards.

    Args:
        warm_up: [ranks] forwards before the first pair.
        count: forwards, and backwards, per rank.

    Returns:
        kind [ranks, 2 * count], 0 F or 1 B; number [ranks, 2 * count], which forward or backward of its rank it is.

    >>> kind, number = warm_up_then_pairs([2], 3)
    >>> [f"{'FB'[k]}{n}" for k, n in zip(kind[0], number[0])]
    ['F0', 'F1', 'F2', 'B0', 'B1', 'B2']
    """
    start = np.minimum(np.asarray(warm_up, np.int32), count)[:, None]
    column = np.arange(2 * count, dtype=np.int32)[None, :]
    place = column - start
    odd = (place & 1).astype(bool)
    warming, draining = place < 0, column >= 2 * count - start
    backward = draining | (odd & ~warming)
    number = (place >> 1) + np.where(odd, 0, start)
    number = np.where(warming, column, np.where(draining, column - count, number))
    return backward.astype(np.int8), number.astype(np.int32)


def _check_range(order: PipelineOrder, placement: Placement, microbatches: int) -> None:
    if order.ranks != placement.ranks or placement.microbatches != microbatches:
        raise ProgramError(
            f"order, placement and step agree: the order has {order.ranks} ranks, the placement {placement.ranks} "
            f"ranks and {placement.microbatches} microbatches, the step {microbatches}; make all three from one shape"
        )
    for name, column, size in (("kind", order.kind, len(KINDS)), ("chunk", order.chunk, placement.chunks)):
        for n in np.flatnonzero((column < 0) | (column >= size))[:1]:
            raise ProgramError(
                f"{name} lies in 0..{size - 1}: action {n} on rank {order.rank[n]} has {name} {column[n]}"
            )
    for n in np.flatnonzero((order.microbatch < 0) | (order.microbatch >= microbatches))[:1]:
        raise ProgramError(
            f"microbatches lie in 0..{microbatches - 1}: {order.action(n)} stands on rank {order.rank[n]}; "
            f"drop it, or give the step {int(order.microbatch[n]) + 1} microbatches"
        )


def _first_places(order: PipelineOrder, chunks: int, microbatches: int) -> NDArray[np.int64]:
    """Return [4, chunks, microbatches] the place of each action, -1 where there is none; refuse doubles."""
    flat = (order.kind.astype(np.int64) * chunks + order.chunk) * microbatches + order.microbatch
    place = np.full(4 * chunks * microbatches, -1, np.int64)
    place[flat] = np.arange(order.size)
    for n in np.flatnonzero(place[flat] != np.arange(order.size))[:1]:
        raise ProgramError(f"every action runs once: {order.action(n)} stands twice on rank {order.rank[n]}; drop one")
    return place.reshape(4, chunks, microbatches)


def _require_all(good: NDArray[np.bool_], message: str) -> None:
    for chunk, microbatch in np.argwhere(~good)[:1]:
        raise ProgramError(message.format(chunk, microbatch))
