"""Who does what in which order: the actions of all ranks as columns, and their text, one line per rank.

Whole microbatches are written as `torch.distributed.pipelining` reads and writes them (compute-only form); what torch
cannot say (groups, parts) extends that grammar, see `simulator.schedules.action`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.errors import ProgramError
from simulator.schedules.action import KINDS, Action, B, Cell, F, I, W, cell_text, parse_cell
from simulator.schedules.placement import read_only

__all__ = ["Action", "B", "Cell", "F", "I", "PipelineOrder", "W", "warm_up_then_pairs"]

_DTYPES: dict[str, type[np.integer]] = {
    "rank_offsets": np.int64,
    "kind": np.int8,
    "chunk": np.int32,
    "microbatch": np.int32,
    "count": np.int8,
    "part": np.int16,
    "parts": np.int16,
    "pair": np.int32,
}


@dataclass(frozen=True, slots=True, eq=False)
class PipelineOrder:
    """The actions of all ranks, in order, as read-only columns; rank r owns entries rank_offsets[r]:rank_offsets[r+1].

    Args:
        rank_offsets: [ranks + 1].
        kind: [actions] 0 F, 1 B, 2 I, 3 W.
        chunk: [actions] global stage number 0..p*v-1.
        microbatch: [actions] 0..m-1; the first, where an action covers several.
        count: [actions] whole microbatches that the action covers; default 1.
        part, parts: [actions] which part, from 0, of how many of the microbatch; default 0 of 1.
        weight: [actions] time relative to one whole microbatch on that chunk; default count / parts.
        pair: [actions] index of the action it runs fused with, right beside it (forward first), or -1 (default).

    Raises:
        ProgramError: numbers too large, columns of unequal length, or offsets that do not cover them.
    """

    rank_offsets: NDArray[np.int64]
    kind: NDArray[np.int8]
    chunk: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    count: NDArray[np.int8] = None  # type: ignore[assignment]
    part: NDArray[np.int16] = None  # type: ignore[assignment]
    parts: NDArray[np.int16] = None  # type: ignore[assignment]
    weight: NDArray[np.float64] = None  # type: ignore[assignment]
    pair: NDArray[np.int32] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        size = len(self.kind)
        for name, default in (("count", 1), ("part", 0), ("parts", 1), ("pair", -1)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(size, default, _DTYPES[name]))
        for name, dtype in _DTYPES.items():
            try:
                object.__setattr__(self, name, read_only(getattr(self, name), dtype))
            except ValueError as error:
                raise ProgramError(f"{name} of an order holds whole numbers: {error}; number them from 0") from None
        sizes = {len(getattr(self, name)) for name in _DTYPES if name != "rank_offsets"}
        sizes |= {size if self.weight is None else len(self.weight)}
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
        weight = (
            np.array(self.weight, np.float64)
            if self.weight is not None
            else np.divide(self.count, np.maximum(self.parts, 1), dtype=np.float64)
        )
        weight.flags.writeable = False
        object.__setattr__(self, "weight", weight)
        _check_pairs(self)

    @classmethod
    def from_grid(
        cls,
        kind: ArrayLike,
        chunk: ArrayLike,
        microbatch: ArrayLike,
        *,
        keep: ArrayLike | None = None,
        **more: ArrayLike,
    ) -> PipelineOrder:
        """Return the order whose rank r runs row r of these arrays; they are [ranks, actions] or broadcast to it.

        Args:
            keep: which entries stand in the order; default all.
            more: count, part, parts, weight or pair, alike.

        >>> PipelineOrder.from_grid([[0, 1]], 0, 0).to_text()
        '0F0,0B0\\n'
        """
        grids = np.broadcast_arrays(kind, chunk, microbatch, *more.values())
        ranks, actions = grids[0].shape
        names = ("kind", "chunk", "microbatch", *more)
        if keep is None:
            columns = {name: grid.ravel() for name, grid in zip(names, grids, strict=True)}
            return cls(np.arange(ranks + 1) * actions, **columns)
        chosen = np.broadcast_to(np.asarray(keep, np.bool_), grids[0].shape)
        columns = {name: grid[chosen] for name, grid in zip(names, grids, strict=True)}
        return cls(np.concatenate([[0], np.cumsum(chosen.sum(axis=1))]), **columns)

    @property
    def completes(self) -> NDArray[np.bool_]:
        """[actions] whether the backward of its part is over with it: B and W."""
        return np.asarray((self.kind == 1) | (self.kind == 3))

    @classmethod
    def from_actions(cls, ranks: Iterable[Iterable[Cell]]) -> PipelineOrder:
        """Return the order that runs these actions and fused pairs, one iterable per rank.

        >>> PipelineOrder.from_actions([[F(0, 0), (F(0, 1), B(0, 0)), B(0, 1)]]).pair.tolist()
        [-1, 2, 1, -1]
        """
        flat: list[tuple[int, ...]] = []
        weight: list[float] = []
        offsets = [0]
        for cells in ranks:
            for cell in cells:
                pair = (len(flat) + 1, len(flat)) if isinstance(cell, tuple) else (-1,)
                for a, partner in zip(cell if isinstance(cell, tuple) else (cell,), pair, strict=True):
                    flat.append((KINDS.index(a.kind), a.chunk, a.microbatch, a.count, a.part, a.parts, partner))
                    weight.append(a.share)
            offsets.append(len(flat))
        table = np.array(flat, np.int32).reshape(-1, 7)
        kind, chunk, microbatch, count, part, parts, partners = table.T
        return cls(offsets, kind, chunk, microbatch, count, part, parts, weight, partners)  # type: ignore[arg-type]

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
            cells = []
            for position, cell in enumerate(line.split(","), 1):
                if not cell.strip():
                    continue
                try:
                    cells.append(parse_cell(cell.strip()))
                except ProgramError as error:
                    raise ProgramError(f"line {number}, cell {position}: {error}") from None
            if not cells:
                raise ProgramError(f"line {number}: every line is one rank with at least one action; this one is empty")
            ranks.append(cells)
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
        """Return one action by its place in the columns; its weight is None where it is count / parts."""
        count, part, parts = int(self.count[number]), int(self.part[number]), int(self.parts[number])
        weight = float(self.weight[number])
        return Action(
            KINDS[int(self.kind[number])],  # type: ignore[arg-type]
            int(self.chunk[number]),
            int(self.microbatch[number]),
            count,
            part,
            parts,
            None if weight == count / parts else weight,
        )

    def rows(self, rank: int) -> list[Action]:
        """Return the actions of one rank, in order; a fused pair is two of them."""
        return [self.action(n) for n in range(int(self.rank_offsets[rank]), int(self.rank_offsets[rank + 1]))]

    def cells(self, rank: int) -> list[Cell]:
        """Return the operations of one rank, in order; a fused pair is one of them."""
        first, last = int(self.rank_offsets[rank]), int(self.rank_offsets[rank + 1])
        rows = self.rows(rank)
        leads = (self.pair[first:last] == np.arange(first + 1, last + 1)).tolist()
        follows = [False, *leads]
        return [(rows[n], rows[n + 1]) if leads[n] else rows[n] for n in range(len(rows)) if not follows[n]]

    def to_text(self, torch: bool = False) -> str:
        """Return the text form; `parse` is its inverse.

        Args:
            torch: write it for `torch.distributed.pipelining`.

        Raises:
            ProgramError: torch cannot say it.
        """
        return "".join(",".join(cell_text(c, torch) for c in self.cells(rank)) + "\n" for rank in range(self.ranks))

    def repeated(self, steps: int, microbatches: int) -> PipelineOrder:
        """Return the order of several steps in which every rank ends its part of one before it begins the next.

        Args:
            microbatches: of one step; they are numbered through.

        >>> PipelineOrder.parse("0F0,0B0\\n1F0,1B0").repeated(2, 1).to_text().splitlines()
        ['0F0,0B0,0F1,0B1', '1F0,1B0,1F1,1B1']
        """
        sizes = np.diff(self.rank_offsets)
        rank = np.repeat(np.arange(self.ranks), sizes * steps)
        place = np.arange(self.size * steps) - np.repeat(self.rank_offsets[:-1] * steps, sizes * steps)
        step, inside = np.divmod(place, sizes[rank])
        source = self.rank_offsets[rank] + inside
        columns = {name: getattr(self, name)[source] for name in ("kind", "chunk", "count", "part", "parts", "weight")}
        pair = self.pair[source].astype(np.int64)
        shifted = np.where(pair >= 0, np.arange(len(source)) + pair - source, -1)
        return PipelineOrder(
            self.rank_offsets * steps, microbatch=self.microbatch[source] + step * microbatches, pair=shifted, **columns
        )

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


def _check_pairs(order: PipelineOrder) -> None:
    """Check that every fused pair is a forward with the backward right behind it, on one rank.

    Raises:
        ProgramError: a pair is not; the message names its first action.
    """
    fused = np.flatnonzero(order.pair >= 0)
    if not len(fused):
        return
    partner = order.pair[fused]
    inside = partner < order.size
    safe = np.where(inside, partner, 0)
    step = partner - fused
    rank = order.rank
    kinds = np.where(step > 0, order.kind[fused] == 0, (order.kind[fused] == 1) | (order.kind[fused] == 2))
    good = inside & (np.abs(step) == 1) & (order.pair[safe] == fused) & (rank[safe] == rank[fused]) & kinds
    for n in fused[~good][:1]:
        raise ProgramError(
            f"a fused pair is a forward and the backward right behind it on one rank, each naming the other: action "
            f"{n}, {order.action(int(n))}, names {order.pair[n]}; put the two side by side"
        )
