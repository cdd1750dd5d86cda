"""Unfold a program: one rank per pipeline rank and class of replicas, in place of one for all replicas.

    folded    0:dp  [--- all_reduce ---]         one row, for all replicas arrive together

    unfolded  0:dp  |[--- all_reduce ---]|       a class waits at the first bar until all have come; then each holds its own
              4:dp  |[--- all_reduce ---]|       stream; at the second bar all have ended

The bars are rows without a duration that hold the streams of all classes that meet.  Rank number = class x pipeline ranks +
pipeline rank.  Rows keep their order on every stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.program.program import Link, Program
from simulator.program.ragged import frozen, offsets, ranges
from simulator.program.replicas import ReplicaMesh
from simulator.program.rows import EFFECT_COLUMNS, ROW_COLUMNS, SPECIAL_COLUMNS

__all__ = ["BAR", "Unfolded", "unfold"]

BAR = Link(name="all of the group are here", message=0.0, dtype="", collective="barrier")
"""Where classes of replicas wait for each other; takes no time."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unfolded:
    """An unfolded program and where it comes from.

    Args:
        program: one rank per class and pipeline rank.
        folded_item: [items] the item of the folded program, -1 for bars.
        bits: [items] which kinds of members take part, joined over all of them.
        folded_row: [rows] the row of the folded program.
        owner: [rows] the class that a row belongs to; of a bar the first that meets there.
        bar: [rows] whether it is a bar.
    """

    program: Program
    folded_item: Ints
    bits: Ints
    folded_row: Ints
    owner: Ints
    bar: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slots:
    """What a folded row becomes: rows in order, each with its class; who holds, who waits, and what stands for a class.

    Args:
        owner, bar: per new row.
        holds: (new row, class) pairs: the streams of the class are held.
        waits: (new row, class) pairs: it waits for what the folded row waits for, in that class.
        last: per class: the new row whose end is the end of the row for that class.
        joined: per new row: classes whose members take part, as a list.
    """

    owner: Ints
    bar: NDArray[np.bool_]
    holds: tuple[Ints, Ints]
    waits: tuple[Ints, Ints]
    last: Ints
    joined: tuple[tuple[int, ...], ...]


def _apart(classes: int) -> _Slots:
    each = np.arange(classes, dtype=np.int64)
    return _Slots(
        owner=each,
        bar=np.zeros(classes, bool),
        holds=(each, each),
        waits=(each, each),
        last=each,
        joined=tuple((c,) for c in range(classes)),
    )


def _meeting(sets: list[list[int]], classes: int) -> _Slots:
    """Each set of classes meets: alone without bars, else between two."""
    owner: list[int] = []
    bar: list[bool] = []
    holds: list[tuple[int, int]] = []
    waits: list[tuple[int, int]] = []
    joined: list[tuple[int, ...]] = []
    last = np.zeros(classes, np.int64)

    def add(cls: int, is_bar: bool, held: list[int], waiting: list[int], together: list[int]) -> int:
        number = len(owner)
        owner.append(cls)
        bar.append(is_bar)
        joined.append(tuple(together))
        holds.extend((number, c) for c in held)
        waits.extend((number, c) for c in waiting)
        return number

    for together in sets:
        if len(together) == 1:
            last[together[0]] = add(together[0], False, together, together, together)
            continue
        add(together[0], True, together, together, together)
        for c in together:
            add(c, False, [c], [], together)
        last[together] = add(together[0], True, together, [], together)
    pairs = [np.array(p, np.int64).reshape(-1, 2).T for p in (holds, waits)]
    return _Slots(
        owner=np.array(owner, np.int64),
        bar=np.array(bar, bool),
        holds=(pairs[0][0], pairs[0][1]),
        waits=(pairs[1][0], pairs[1][1]),
        last=last,
        joined=tuple(joined),
    )


def unfold(program: Program, mesh: ReplicaMesh, class_of: Ints, bits: Ints) -> Unfolded:
    """Return the program with one rank per class of replicas and pipeline rank.

    Args:
        program: folded.
        mesh: its replicas.
        class_of: [replicas] from `alike`.
        bits: [classes, pipeline ranks] kinds of members, as bits; an item is kept apart for each set of kinds that runs it.
    """
    classes = int(class_of.max()) + 1
    plans = [_apart(classes)]
    for groups in mesh.groups:
        met = np.unique(groups * classes + class_of)
        sets = {tuple(s) for s in np.split(met % classes, np.flatnonzero(np.diff(met // classes)) + 1)}
        plans.append(_meeting([[int(c) for c in s] for s in sorted(sets)], classes))
    plan_of = mesh.meeting.astype(np.int64) + 1
    count = np.array([len(p.owner) for p in plans])[plan_of] if program.size else np.zeros(0, np.int64)
    base = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    rows = int(base[-1])
    folded_row = np.repeat(np.arange(program.size), count)
    slot = np.arange(rows) - base[folded_row]
    owner, bar = np.zeros(rows, np.int64), np.zeros(rows, bool)
    for number, plan in enumerate(plans):
        mine = plan_of[folded_row] == number
        owner[mine], bar[mine] = plan.owner[slot[mine]], plan.bar[slot[mine]]
    stream_offsets, streams = _streams(program, plans, plan_of, base)
    after_offsets, after = _after(program, plans, plan_of, base)
    item, items, folded_item, item_bits = _items(
        program, _row_bits(program, plans, plan_of, bits, folded_row, slot), folded_row, bar
    )
    made = replace(
        program,
        items=items,
        item=frozen(item.astype(np.int32)),
        stream_offsets=stream_offsets,
        streams=streams,
        after_offsets=after_offsets,
        after=after,
        **_row_columns(program, folded_row, owner, bar),
        **_rank_columns(program, class_of),
    )
    return Unfolded(program=made, folded_item=folded_item, bits=item_bits, folded_row=folded_row, owner=owner, bar=bar)


def _row_columns(program: Program, folded_row: Ints, owner: Ints, bar: NDArray[np.bool_]) -> dict[str, Any]:
    """The columns that a new row has from its folded row; ranks and lanes count on from class to class."""
    columns = {name: getattr(program, name) for name in _COPIED}
    out = {name: values[folded_row] for name, values in columns.items() if len(values)}
    effects = {name: getattr(program, name) for name in EFFECT_COLUMNS}
    for name, values in effects.items():
        if len(values):
            out[name] = np.where(bar, -1, values[folded_row]).astype(np.int32)
    lanes = int(program.lane.max(initial=0)) + 1
    out["rank"] = (program.rank[folded_row] + owner * program.ranks).astype(np.int32)
    out["lane"] = (program.lane[folded_row] + owner * lanes).astype(np.int32)
    return {name: frozen(values) for name, values in out.items()}


def _rank_columns(program: Program, class_of: Ints) -> dict[str, Any]:
    """Streams and ranks, once per class."""
    sizes = np.bincount(class_of).astype(np.float64)
    classes = len(sizes)
    streams = [program.stream_rank + c * program.ranks for c in range(classes)]
    return {
        "stream_rank": frozen(np.concatenate(streams).astype(np.int32)),
        "stream_lane": program.stream_lane * classes,
        "rank_weight": frozen((program.rank_weight[None, :] * sizes[:, None] / len(class_of)).reshape(-1)),
        "resident": program.resident * classes,
        "host_resident": program.host_resident * classes,
        "nvme_resident": program.nvme_resident * classes,
    }


_COPIED = tuple(c for c in (*ROW_COLUMNS, *SPECIAL_COLUMNS) if c not in ("item", "rank", "lane"))


def _ragged(starts: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return (index into `rows`, entry) of all entries of these rows."""
    width = starts[rows + 1] - starts[rows]
    which = np.repeat(np.arange(len(rows)), width)
    return which, ranges(starts[rows], width)


def _streams(program: Program, plans: list[_Slots], plan_of: Ints, base: Ints) -> tuple[Ints, NDArray[np.int32]]:
    rows_of, streams_of, lanes = [], [], len(program.stream_rank)
    for number, plan in enumerate(plans):
        rows = np.flatnonzero(plan_of == number)
        slots, classes = plan.holds
        which, entry = _ragged(program.stream_offsets, rows)
        rows_of.append((base[rows][which][:, None] + slots[None, :]).reshape(-1))
        streams_of.append((program.streams[entry].astype(np.int64)[:, None] + lanes * classes[None, :]).reshape(-1))
    owner, streams = np.concatenate(rows_of), np.concatenate(streams_of)
    order = np.argsort(owner, kind="stable")
    return offsets(owner, int(base[-1])), frozen(streams[order].astype(np.int32))


def _after(program: Program, plans: list[_Slots], plan_of: Ints, base: Ints) -> tuple[Ints, NDArray[np.int32]]:
    last = np.stack([p.last for p in plans])
    rows_of, others = [], []
    for number, plan in enumerate(plans):
        rows = np.flatnonzero(plan_of == number)
        slots, classes = plan.waits
        which, entry = _ragged(program.after_offsets, rows)
        other = program.after[entry].astype(np.int64)
        rows_of.append((base[rows][which][:, None] + slots[None, :]).reshape(-1))
        others.append((base[other][:, None] + last[plan_of[other]][:, classes]).reshape(-1))
    total = int(base[-1])
    pairs = np.unique(np.concatenate(rows_of) * max(total, 1) + np.concatenate(others))
    owner = pairs // max(total, 1)
    return offsets(owner, total), frozen((pairs % max(total, 1)).astype(np.int32))


def _row_bits(program: Program, plans: list[_Slots], plan_of: Ints, bits: Ints, folded_row: Ints, slot: Ints) -> Ints:
    """Per new row: the kinds of all members that take part."""
    if not program.size:
        return np.zeros(0, np.int64)
    of_stream = bits[:, program.stream_rank]
    per_row = np.bitwise_or.reduceat(of_stream[:, program.streams], program.stream_offsets[:-1], axis=1)
    out = np.zeros(len(folded_row), np.int64)
    for number, plan in enumerate(plans):
        mine = np.flatnonzero(plan_of[folded_row] == number)
        together: dict[tuple[int, ...], int] = {}
        index = np.array([together.setdefault(j, len(together)) for j in plan.joined], np.int64)
        table = np.stack([np.bitwise_or.reduce(per_row[list(j)], axis=0) for j in together])
        out[mine] = table[index[slot[mine]], folded_row[mine]]
    return out


def _items(
    program: Program, row_bits: Ints, folded_row: Ints, bar: NDArray[np.bool_]
) -> tuple[Ints, tuple[Any, ...], Ints, Ints]:
    """One item per folded item and kinds of members; one for all bars."""
    kinds, kind = np.unique(np.where(bar, 0, row_bits), return_inverse=True)
    code = np.where(bar, -1, program.item[folded_row]).astype(np.int64) * len(kinds) + kind.reshape(-1)
    codes, item = np.unique(code, return_inverse=True)
    folded_item = codes // max(1, len(kinds))
    items = tuple(BAR if i < 0 else program.items[i] for i in folded_item.tolist())
    return item.reshape(-1), items, folded_item, kinds[codes % max(1, len(kinds))]
