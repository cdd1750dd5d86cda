"""The rules of a program, one small function each, over arrays.

`verify` runs all rules, once per program in production and between all passes in tests.  It does not sort the rows:
engines notice rows that never start and ask `find_deadlock` who waits for whom.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.program.action_rules import actions_are_in_order, actions_are_whole
from simulator.program.broken import first_place, row_named
from simulator.program.calls import CALLS, NodeExchange, write_call
from simulator.program.deadlock import find_deadlock
from simulator.program.program import (
    CATEGORIES,
    COLLECTIVE,
    COMPUTE,
    COPIES,
    COPY,
    EAGER,
    IN_STEP_GRAPH,
    KIND_NAMES,
    TRANSFER,
    FusedSegment,
    Link,
    OperatorTable,
    Program,
)
from simulator.program.rows import EFFECT_COLUMNS, ROW_COLUMNS, SPECIAL_COLUMNS, fixed
from simulator.program.stage_rules import stages_have_meshes

__all__ = ["RULES", "check_runnable", "find_deadlock", "verify"]

_LANE = re.compile(r"[A-Za-z0-9_<>.\-]{1,40}")


def verify(program: Program) -> None:
    """Check every rule.

    Raises:
        ProgramError: the first rule that is broken, with the row and the values.

    >>> from simulator.program.builder import ProgramBuilder, plain_segment
    >>> build = ProgramBuilder()
    >>> stream = build.add_stream(build.add_rank())
    >>> row = build.add_row(build.add_item(plain_segment("layer")), stream, after=[0])
    >>> verify(build.build())
    Traceback (most recent call last):
    simulator.errors.ProgramError: a row cannot wait for itself: row 0 (layer) on rank 0 names itself in `after`
    """
    known: set[object] = program.rows.once("rules that they obey", set)
    seen = ((_ROWS, ()), (_LANES, program.stream_lane), (_FORM, _form(program)))
    fresh = dict([facts for facts in seen if facts not in known])
    for rule, what in _LOOKS_AT.items():
        if what == _AMOUNTS or what in fresh:
            rule(program)
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known.update(fresh.items())


_MOST_KNOWN = 64
_ROWS, _LANES, _FORM, _AMOUNTS = "rows", "lanes", "form", "amounts"
"""What a rule looks at besides the columns of rows: nothing, names of lanes, a `_form`, or what only that program has."""


def _form(program: Program) -> tuple[object, ...]:
    """All that rules look at besides the row columns and what is priced: what items are, and how many of everything there are."""
    items = tuple(
        [
            type(item) is FusedSegment if type(item) is not Link else (item.kind, item.pipeline_ranks)
            for item in program.items
        ]
    )
    return items, program.axes, *_sizes(program)


def _sizes(program: Program) -> tuple[int, ...]:
    """How many items, effects and ranks there are."""
    return (
        len(program.items),
        len(program.effects),
        program.ranks,
        len(program.stream_lane),
        len(program.resident),
        len(program.host_resident),
        len(program.nvme_resident),
    )


def check_runnable(program: Program, occupancy: NDArray[np.float64], latency: NDArray[np.float64]) -> None:
    """Check what an engine needs so as never to read beyond an array: shapes, indices, and times for all items.

    Args:
        occupancy: seconds per item, or a matrix [samples, items].
        latency: the same.

    Raises:
        ProgramError: a column of another length, an index out of range, a time that is negative or not finite.
    """
    _arrays_fit(program)
    for name, seconds in (("occupancy", occupancy), ("latency", latency)):
        if seconds.shape[-1] != len(program.items):
            raise ProgramError(
                f"prices hold one {name} per item, but there are {seconds.shape[-1]} for {len(program.items)} items; "
                "price this very program"
            )
        if seconds.size and not (seconds.min() >= 0.0 and seconds.max() < math.inf):
            wrong = ~(np.isfinite(seconds) & (seconds >= 0.0))
            item = int(np.argwhere(wrong)[0][-1])
            raise ProgramError(
                f"times are finite and not negative: {name} of item {item} ({program.items[item].name}) is "
                f"{seconds[..., item].min()} s"
            )


def _arrays_fit(program: Program) -> None:
    """Columns are as long as they should be, and what they number is there."""
    program.rows.once(("arrays", _sizes(program)), lambda: _check_arrays(program))
    _effect_counts(program)


def _check_arrays(program: Program) -> None:
    _offsets_are_monotone(program)
    _columns_are_as_long_as_the_rows(program)
    _indices_are_in_range(program, _row_indices(program))


def _offsets_are_monotone(program: Program) -> None:
    for name in ("stream", "after"):
        offsets: NDArray[Any] = getattr(program, f"{name}_offsets")
        entries = len(program.streams if name == "stream" else program.after)
        if len(offsets) != program.size + 1 or offsets[0] != 0 or offsets[-1] != entries:
            raise ProgramError(
                f"{name}_offsets must run from 0 to the {entries} entries in {program.size} + 1 numbers, but it has "
                f"{len(offsets)} numbers, from {offsets[:1].tolist()} to {offsets[-1:].tolist()}"
            )
        row = first_place(offsets[1:] < offsets[:-1])
        if row is not None:
            raise ProgramError(f"{name}_offsets may not fall, but fall at {row_named(program, row)}")


def _columns_are_as_long_as_the_rows(program: Program) -> None:
    for name in (*ROW_COLUMNS, *EFFECT_COLUMNS, *SPECIAL_COLUMNS):
        length = len(getattr(program, name))
        if length != program.size and not (length == 0 and name not in ROW_COLUMNS):
            raise ProgramError(f"every column has one entry per row: {name} has {length} for {program.size} rows")
    if len(program.stream_lane) != len(program.stream_rank):
        raise ProgramError(f"{len(program.stream_rank)} streams have {len(program.stream_lane)} lanes; each has one")
    for name in ("resident", "host_resident", "nvme_resident"):
        if len(getattr(program, name)) not in (0, program.ranks):
            raise ProgramError(
                f"{name} has one entry per rank or none, but {len(getattr(program, name))} for {program.ranks}"
            )


def _weights_count_ranks(program: Program) -> None:
    rank = first_place(~(np.isfinite(program.rank_weight) & (program.rank_weight > 0)))
    if rank is not None:
        raise ProgramError(f"a rank stands for one or more real ranks, but rank {rank} has {program.rank_weight[rank]}")


def _axes_have_ranks(program: Program) -> None:
    for name, size in program.axes:
        if size < 1:
            raise ProgramError(f"a mesh axis has one or more ranks, but {name} has {size}")


Limits = list[tuple[str, NDArray[Any], int, int, NDArray[Any] | None]]
"""(column, its numbers, the lowest, the one above the highest, where the entries of each row begin)."""


def _row_indices(program: Program) -> Limits:
    streams = len(program.stream_rank)
    return [
        ("item", program.item, 0, len(program.items), None),
        ("kind", program.kind, 0, len(KIND_NAMES), None),
        ("action", program.action, -1, 6, None),
        ("rank", program.rank, 0, program.ranks, None),
        ("streams", program.streams, 0, streams, program.stream_offsets),
        ("after", program.after, 0, program.size, program.after_offsets),
        ("stream_rank", program.stream_rank, 0, program.ranks, None),
    ]


def _effect_indices(program: Program) -> Limits:
    return [(name, getattr(program, name), -1, len(program.effects), None) for name in EFFECT_COLUMNS]


def _indices_are_in_range(program: Program, limits: Limits) -> None:
    for name, values, low, high, offsets in limits:
        if len(values) == 0 or (values.min() >= low and values.max() < high):
            continue
        place = int(((values < low) | (values >= high)).argmax())
        row = place if offsets is None else int(np.searchsorted(offsets, place, side="right")) - 1
        spot = f"stream {row}" if name == "stream_rank" else row_named(program, row)
        raise ProgramError(f"{name} lies in {low}..{high - 1}, but is {int(values[place])} at {spot}")


def _streams_have_names_of_their_own(program: Program) -> None:
    seen: set[tuple[int, str]] = set()
    for number, (rank, lane) in enumerate(zip(program.stream_rank.tolist(), program.stream_lane, strict=True)):
        if not _LANE.fullmatch(lane):
            raise ProgramError(f"a lane is a word of letters, digits and <>_.-, but stream {number} has {lane!r}")
        if (rank, lane) in seen:
            raise ProgramError(
                f"a rank has one stream per lane, but {rank}:{lane} occurs twice, last as stream {number}"
            )
        seen.add((rank, lane))


def _rows_do_not_wait_for_themselves(program: Program) -> None:
    owner = np.repeat(np.arange(program.size, dtype=np.int32), np.diff(program.after_offsets))
    entry = first_place(program.after == owner)
    if entry is not None:
        place = row_named(program, int(owner[entry]))
        raise ProgramError(f"a row cannot wait for itself: {place} names itself in `after`")


def _rows_hold_streams_once(program: Program) -> None:
    held = np.diff(program.stream_offsets)
    row = first_place(held < 1)
    if row is not None:
        raise ProgramError(f"a row holds at least one stream, but {row_named(program, row)} holds none")
    begin = program.stream_offsets[:-1]
    twice = np.zeros(program.size, bool)
    pairs = np.flatnonzero(held == 2)
    twice[pairs] = program.streams[begin[pairs]] == program.streams[begin[pairs] + 1]
    for many in np.flatnonzero(held > 2).tolist():
        streams = program.streams[begin[many] : begin[many] + held[many]]
        twice[many] = len(np.unique(streams)) < len(streams)
    row = first_place(twice)
    if row is not None:
        raise ProgramError(f"a row holds a stream once, but {row_named(program, row)} names one twice")


def _rows_belong_to_a_rank_they_hold(program: Program) -> None:
    owner = program.stream_rank[program.streams[program.stream_offsets[:-1]]]
    for row in np.flatnonzero(owner != program.rank).tolist():
        streams = program.streams[program.stream_offsets[row] : program.stream_offsets[row + 1]]
        if program.rank[row] not in program.stream_rank[streams]:
            ranks = sorted(set(program.stream_rank[streams].tolist()))
            raise ProgramError(
                f"a row belongs to a rank whose stream it holds: {row_named(program, row)} holds {ranks}"
            )


def _kinds_match_items(program: Program) -> None:
    kinds = np.array([item.kind if isinstance(item, Link) else COMPUTE for item in program.items], np.int8)
    row = first_place(program.kind != kinds[program.item]) if program.size else None
    if row is not None:
        got, wanted = KIND_NAMES[program.kind[row]], KIND_NAMES[kinds[program.item[row]]]
        raise ProgramError(f"a row is of its item's kind: {row_named(program, row)} is {got}, its item is {wanted}")


def _all_members_take_part(program: Program) -> None:
    members = {
        number: _members(item.pipeline_ranks)
        for number, item in enumerate(program.items)
        if isinstance(item, Link) and item.pipeline_ranks
    }
    for number, ranks in members.items():
        if not (ranks[0] >= 0 and ranks[-1] < program.ranks):
            name = program.items[number].name
            raise ProgramError(
                f"pipeline_ranks lie in 0..{program.ranks - 1}, but item {number} ({name}) has {list(ranks)}"
            )
    low, high, count = np.zeros((3, len(program.items)), np.int64)
    if members:
        low[list(members)], high[list(members)], count[list(members)] = zip(
            *((r[0], r[-1], len(r)) for r in members.values()), strict=True
        )
    rows = np.flatnonzero((count > 0)[program.item])  # all others are of every rank by itself
    begin, item = program.stream_offsets[rows], program.item[rows]
    held = program.stream_offsets[rows + 1] - begin
    place = program.stream_rank % dict(program.axes).get(
        "pp", program.ranks
    )  # an unfolded rank's place in the pipeline
    one, other = place[program.streams[begin]], place[program.streams[begin + held - 1]]
    good = (held == count[item]) & (held <= 2)
    good &= (np.minimum(one, other) == low[item]) & (np.maximum(one, other) == high[item])
    for row in rows[~good].tolist():
        streams = program.streams[program.stream_offsets[row] : program.stream_offsets[row + 1]]
        taking, wanted = sorted(set(place[streams].tolist())), members[int(program.item[row])]
        if taking != list(wanted):
            raise ProgramError(
                f"every member of a group takes part, and nobody else: {row_named(program, row)} holds streams of ranks "
                f"{taking}, but its item names pipeline ranks {list(wanted)}"
            )


@functools.lru_cache(maxsize=4096)
def _members(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks once each, in ascending order."""
    return tuple(sorted(set(ranks)))


def _amounts_are_finite(program: Program) -> None:
    known: dict[
        int, object
    ] = {}  # of segments that run the very same one is looked at; held, so that no other gets its number
    for item in program.items:
        if isinstance(item, Link):
            named = (
                item.collective in COPIES if item.kind == COPY else (item.kind == COLLECTIVE) == bool(item.collective)
            )
            if item.kind not in (1, 2, 3) or not named:
                raise ProgramError(
                    f"a link is a transfer, a collective with its name, or a copy: {item.name!r} has kind "
                    f"{item.kind} and collective {item.collective!r}"
                )
            if item.kind == TRANSFER and len(item.pipeline_ranks) != 2:
                raise ProgramError(
                    f"a transfer goes from one pipeline rank to another: {item.name!r} names {list(item.pipeline_ranks)}"
                )
            if item.blocks and item.kind != TRANSFER:
                raise ProgramError(f"only a transfer blocks: {item.name!r} has kind {item.kind}")
            if not (math.isfinite(item.message) and item.message >= 0):
                raise ProgramError(f"a message is finite and not negative: {item.name!r} has {item.message} bytes")
            if item.served and (
                item.kind != COLLECTIVE or item.served.servers < 0 or not 0 <= item.served.moved < math.inf
            ):
                raise ProgramError(
                    f"servers are those of a collective, 0 or more, and move a finite number of bytes: {item.name!r} has {item.served}"
                )
            if item.slices < 0 or (item.slices and item.kind != COLLECTIVE):
                raise ProgramError(
                    f"slices are those of a collective, 0 or more: {item.name!r} of kind {item.kind} has {item.slices}"
                )
            continue
        pieces = item.pieces
        if id(pieces) in known:
            continue
        known[id(pieces)] = pieces
        for table, count in pieces:
            if count < 0:
                raise ProgramError(
                    f"a segment runs a layer 0 or more times: {item.name!r} has {count} of {table.name!r}"
                )
            _table_is_sound(table)


_NO_CALL = type(None)
_OPERATOR_COLUMNS = (
    "kind", "work", "shape", "call", "dtype", "group", "phase", "launches", "part", "beside", "captured",
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _table_is_sound(table: OperatorTable) -> None:
    for name in _OPERATOR_COLUMNS:
        if len(getattr(table, name)) != len(table):
            raise ProgramError(f"columns of operators are equally long: {name} of {table.name!r} is not {len(table)}")
    for label, kind, work, call in zip(table.label, table.kind.tolist(), table.work, table.call, strict=True):
        if not isinstance(call, CALLS.get(work, _NO_CALL) if kind == COMPUTE else (NodeExchange, _NO_CALL)):
            raise ProgramError(
                f"an operator calls what its work is (a GEMM a product, attention an attention kernel, memory_bound an access): "
                f"{label!r} of {table.name!r} is {work} and calls {write_call(call)}"
            )
    if len(table) and not (table.beside.min() >= -1 and table.beside.max() < len(table)):
        raise ProgramError(f"beside names a row of its own table or -1: see {table.name!r}")
    if len(table) and not (table.captured.min() >= EAGER and table.captured.max() <= IN_STEP_GRAPH):
        raise ProgramError(
            f"operators are started by the host (0), a layer's graph (1) or a step's (2): see {table.name!r}"
        )
    for name in ("flops", "read", "written", "message"):
        values: NDArray[np.float64] = getattr(table, name)
        if len(values) != len(table) or (len(table) and not (values.min() >= 0 and values.max() < math.inf)):
            raise ProgramError(f"{name} of operators is finite and not negative, one per row: see {table.name!r}")


def _memory_returns_to_its_base(program: Program) -> None:
    """What the rows of a rank allocate they also free, per category (to rounding)."""
    allocated, freed, balanced = _effect_counts(program)
    if not program.effects:
        return
    size = program.effect_bytes
    if not (size.min() >= 0 and math.isfinite(size.max())):
        wrong_size = first_place((np.isfinite(size) & (size >= 0)).min(axis=1) < 1)
        raise ProgramError(f"bytes of tensors are finite and not negative: see effect {wrong_size}")
    if balanced:
        return
    net, scale = (allocated - freed) @ size, (allocated + freed) @ np.abs(size)
    wrong = np.argwhere(np.abs(net) > 1e-9 * scale)
    if len(wrong):
        rank, category = wrong[0].tolist()
        raise ProgramError(
            f"what a step allocates it frees: rank {rank} keeps {net[rank, category]:.0f} bytes of "
            f"{CATEGORIES[category]}"
        )


Counts = tuple[NDArray[np.float64], NDArray[np.float64], bool]


def _effect_counts(program: Program) -> Counts:
    """[ranks, effects] how often rows allocate each effect, and how often they free it; whether every rank does both as often.

    Raises:
        ProgramError: an effect is out of range, or a column of them has not one entry per row.
    """
    columns = tuple(getattr(program, name) for name in EFFECT_COLUMNS)
    if not fixed(*columns):
        return _counted(program)
    key = ("effects", len(program.effects), program.ranks, *(id(column) if len(column) else 0 for column in columns))
    counts: Counts = program.rows.once(key, lambda: (*_counted(program), columns))[:3]  # they live as long as their ids
    return counts


def _counted(program: Program) -> Counts:
    _columns_are_as_long_as_the_rows(program)
    _indices_are_in_range(program, _effect_indices(program))
    effects = len(program.effects)
    counts = []
    for column in (program.start_effect, program.end_effect):
        rows = np.flatnonzero(column >= 0)
        cell = program.rank[rows] * np.int64(effects) + column[rows]
        counts.append(
            np.bincount(cell, minlength=program.ranks * effects).reshape(program.ranks, effects).astype(float)
        )
    return counts[0], counts[1], np.array_equal(counts[0], counts[1])


_LOOKS_AT: dict[Callable[[Program], None], str] = {
    _arrays_fit: _FORM,
    _streams_have_names_of_their_own: _LANES,
    _weights_count_ranks: _AMOUNTS,
    _axes_have_ranks: _FORM,
    _rows_do_not_wait_for_themselves: _ROWS,
    _rows_hold_streams_once: _ROWS,
    _rows_belong_to_a_rank_they_hold: _ROWS,
    _kinds_match_items: _FORM,
    _all_members_take_part: _FORM,
    _amounts_are_finite: _AMOUNTS,
    stages_have_meshes: _AMOUNTS,
    actions_are_whole: _FORM,
    actions_are_in_order: _ROWS,
    _memory_returns_to_its_base: _AMOUNTS,
}
"""All rules, in an order in which each may rely on those before it, and what each looks at besides the columns of rows."""
RULES = tuple(_LOOKS_AT)
