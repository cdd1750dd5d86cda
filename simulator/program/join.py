"""Join programs: each rank as one of several programs of one order has it.

    program A    rank 0: F F B B    rank 1: F B F B            A's stages have 2 x 4 ranks
    program B    rank 0: F F B B    rank 1: F B F B            B's have 3 x 1
    joined       rank 0 of A        rank 1 of B                what both meet in (messages, sums) is one row

Ranks of a program wait for one another in rows that hold streams of several ranks, and nowhere else.  These *shared* rows come in the same
order in all of the programs; between them each rank keeps the rows of its own program, in their order on every stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.program.program import Axes, Effect, Item, Link, Program, StageMesh
from simulator.program.ragged import frozen, offsets, ranges
from simulator.program.rows import EFFECT_COLUMNS, ROW_COLUMNS, SPECIAL_COLUMNS

__all__ = ["join", "shared_rows"]

Ints = NDArray[np.int64]


def _span(program: Program) -> tuple[Ints, Ints]:
    """The lowest and the highest rank of which each row holds streams."""
    rank, start = program.stream_rank[program.streams].astype(np.int64), program.stream_offsets[:-1]
    return np.minimum.reduceat(rank, start), np.maximum.reduceat(rank, start)


def shared_rows(program: Program) -> Ints:
    """Return the rows that hold streams of several ranks."""
    low, high = _span(program)
    return np.flatnonzero(low != high)


class _Part:
    """One rank, as its program has it."""

    def __init__(self, program: Program, rank: int) -> None:
        self.program, self.rank = program, rank
        low, high = _span(program)
        self.shared = np.flatnonzero(low != high)
        self.ends = np.stack([low[self.shared], high[self.shared]])
        self.number = np.full(program.size, -1, np.int64)
        self.number[self.shared] = np.arange(len(self.shared))
        self.local = np.flatnonzero((low == high) & (low == rank))
        owner, stream = _entries(program.stream_offsets, program.streams)
        mine = (self.number[owner] >= 0) & (program.stream_rank[stream] == rank)
        self.met, self.met_stream = owner[mine], stream[mine]
        """Shared rows that hold a stream of the rank, and that stream."""
        self.new = np.full(program.size, -1, np.int64)


def join(
    parts: Sequence[Program],
    name: str,
    axes: Axes,
    stages: tuple[StageMesh, ...],
    shared: dict[int, Link],
) -> Program:
    """Return one program of which rank r is that of `parts[r]`.

    Args:
        parts: per rank, the program that has it; all of one order.
        axes, stages: of the joined program.
        shared: what the shared rows run, by their place among all of these.

    Raises:
        ProgramError: the programs do not meet in the same rows.
    """
    held = [_Part(program, rank) for rank, program in enumerate(parts)]
    for part in held[1:]:
        if not np.array_equal(part.ends, held[0].ends):
            raise ProgramError(
                f"programs are joined where their ranks meet in the same rows, but {part.program.name!r} has {part.ends.shape[1]} of "
                f"them and {held[0].program.name!r} {held[0].ends.shape[1]}, or of other ranks"
            )
    count = _number_rows(held)
    items, item_of = _items(held, shared)
    effects, first_effect = _effects(held)
    owner = [(part, part.local) for part in held]
    owner += [(part, part.shared[part.program.rank[part.shared] == part.rank]) for part in held]
    columns: dict[str, Any] = {"item": np.empty(count, np.int32)}
    for part, rows in owner:
        program = part.program
        own = program.item[rows].astype(np.int64)
        of_rank, of_shared = item_of
        numbers = of_shared[part.number[rows]] if len(rows) and part.number[rows[0]] >= 0 else of_rank[part.rank][own]
        columns["item"][part.new[rows]] = numbers
        for column in (*ROW_COLUMNS[1:], *(c for c in SPECIAL_COLUMNS if len(getattr(program, c)))):
            values = getattr(program, column)
            columns.setdefault(column, np.zeros(count, values.dtype))[part.new[rows]] = values[rows]
        for column in EFFECT_COLUMNS:
            values = getattr(program, column)
            if len(values):
                where = np.where(values[rows] >= 0, values[rows] + first_effect[id(program)], -1)
                columns.setdefault(column, np.full(count, -1, np.int32))[part.new[rows]] = where
    first = held[0].program
    run = {id(item) for item in items}
    blocks = {id(b): b for part in held for b in part.program.blocks if any(id(s) in run for s in b.segments)}
    return Program(
        name=name,
        axes=axes,
        items=items,
        blocks=tuple(blocks.values()),
        **{name: frozen(column) for name, column in columns.items()},
        **_streams(held, count),
        **_after(held, count),
        rank_weight=frozen(np.array([part.program.rank_weight[part.rank] for part in held])),
        effects=effects,
        resident=_of_ranks(held, "resident"),
        host_resident=_of_ranks(held, "host_resident"),
        nvme_resident=_of_ranks(held, "nvme_resident"),
        framework=first.framework,
        tokens=first.tokens,
        stages=stages,
    )


def _entries(offsets: NDArray[Any], entries: NDArray[Any]) -> tuple[Ints, Ints]:
    """(row, entry) of a ragged column."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), entries.astype(np.int64)


def _number_rows(held: list[_Part]) -> int:
    """Fill the new number of every row that stays; returns how many there are.

    A row of one rank comes before the next shared row of that rank, in the order of its own program.
    """
    shared = len(held[0].shared)
    keys = [np.stack([np.arange(shared), np.ones(shared, np.int64), np.zeros(shared, np.int64), np.arange(shared)])]
    for part in held:
        mine = np.unique(part.met)
        behind = np.append(part.number[mine], shared)[np.searchsorted(mine, part.local)]
        alike = np.zeros(len(behind), np.int64)
        keys.append(np.stack([behind, alike, alike + part.rank, part.local]))
    every = np.concatenate(keys, axis=1)
    new = np.empty(every.shape[1], np.int64)
    new[np.lexsort(every[::-1])] = np.arange(every.shape[1])
    start = shared
    for part in held:
        part.new[part.shared] = new[:shared]
        part.new[part.local] = new[start : start + len(part.local)]
        start += len(part.local)
    return int(every.shape[1])


def _items(held: list[_Part], shared: dict[int, Link]) -> tuple[tuple[Item, ...], tuple[list[Ints], Ints]]:
    """The items; of each rank where its program's are found, and those of shared rows.  An item belongs to one rank, or is shared."""
    items: list[Item] = []
    of_rank = []
    for part in held:
        used = np.unique(part.program.item[part.local])
        table = np.full(len(part.program.items), -1, np.int64)
        table[used] = len(items) + np.arange(len(used))
        items += [part.program.items[i] for i in used.tolist()]
        of_rank.append(table)
    numbers: dict[Link, int] = {}
    of_shared = np.array([numbers.setdefault(link, len(items) + len(numbers)) for link in shared.values()], np.int64)
    return (*items, *numbers), (of_rank, of_shared)


def _effects(held: list[_Part]) -> tuple[tuple[Effect, ...], dict[int, int]]:
    """All effects, and the first of each program."""
    first: dict[int, int] = {}
    effects: list[Effect] = []
    for part in held:
        if id(part.program) not in first:
            first[id(part.program)] = len(effects)
            effects += part.program.effects
    return tuple(effects), first


def _streams(held: list[_Part], count: int) -> dict[str, Any]:
    """Streams, numbered rank by rank, and which every row holds: of a shared row its owner's first."""
    ranks: list[NDArray[Any]] = []
    lanes: list[str] = []
    rows, streams, turns = [], [], []
    for part in held:
        program = part.program
        mine = np.flatnonzero(program.stream_rank == part.rank)
        table = np.full(len(program.stream_rank), -1, np.int64)
        table[mine] = len(lanes) + np.arange(len(mine))
        ranks.append(program.stream_rank[mine])
        lanes += [program.stream_lane[s] for s in mine.tolist()]
        start = program.stream_offsets[part.local]
        each = program.stream_offsets[part.local + 1] - start
        own = np.repeat(part.local, each)
        held_by = program.streams[ranges(start, each)].astype(np.int64)
        rows += [part.new[own], part.new[part.met]]
        streams += [table[held_by], table[part.met_stream]]
        later = (program.rank[part.met] != part.rank) * (1 + part.rank)
        turns += [np.zeros(len(own), np.int64), later]
    row = np.concatenate(rows)
    order = np.lexsort((np.concatenate(turns), row))
    return {
        "stream_rank": frozen(np.concatenate(ranks).astype(np.int32)),
        "stream_lane": tuple(lanes),
        "streams": frozen(np.concatenate(streams)[order].astype(np.int32)),
        "stream_offsets": offsets(row, count),
    }


def _after(held: list[_Part], count: int) -> dict[str, Any]:
    """What rows wait for: those of a rank as its program has it, shared ones for what every rank's program says of its own rows.

    Raises:
        ProgramError: a row waits for another rank's, past the shared rows.
    """
    rows, others = [], []
    for part in held:
        row, other = _entries(part.program.after_offsets, part.program.after)
        local, meets = np.zeros(part.program.size, bool), np.zeros(part.program.size, bool)
        local[part.local], meets[part.met] = True, True
        if (local[row] & (part.new[other] < 0)).any():
            raise ProgramError(f"ranks of {part.program.name!r} wait for one another past the rows in which they meet")
        kept = local[row] | (meets[row] & (local[other] | (part.number[other] >= 0)))
        rows.append(part.new[row[kept]])
        others.append(part.new[other[kept]])
    pairs = np.unique(np.concatenate(rows) * max(1, count) + np.concatenate(others))
    row = pairs // max(1, count)
    return {"after": frozen((pairs % max(1, count)).astype(np.int32)), "after_offsets": offsets(row, count)}


def _of_ranks(held: list[_Part], name: str) -> tuple[Effect, ...]:
    """A list of effects per rank, () where no program has one."""
    if not any(getattr(part.program, name) for part in held):
        return ()
    found = [getattr(part.program, name) for part in held]
    return tuple(some[rank] if some else Effect() for rank, some in enumerate(found))
