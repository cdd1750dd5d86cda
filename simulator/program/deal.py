"""Deal the microbatches of a stage out to its replicas, in turn: a rank of the program becomes one per replica.

    before    0: F0 F1 F2 F3 B0 B1 ...                     of a stage of two replicas
    after     0: F0    F2    B0    ...                     microbatch m goes to replica m mod 2 (PipeDream, SOSP 2019, section 3.2)
              1:    F1    F3    B1 ...

What a rank does with a microbatch its replica does, in the same order.  What the rank does once for every microbatch of a round beside
its compute (adding gradients) the replicas do together, once a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.program.program import COLLECTIVE, COMPUTE, TRANSFER, Effect, End, Item, Link, Program, StageMesh
from simulator.program.ragged import frozen, offsets
from simulator.program.rows import EFFECT_COLUMNS, ROW_COLUMNS, SPECIAL_COLUMNS

__all__ = ["deal"]

_COPIED = tuple(c for c in (*ROW_COLUMNS, *SPECIAL_COLUMNS, *EFFECT_COLUMNS) if c not in ("item", "rank"))
Ints = NDArray[np.int64]


def deal(program: Program, widths: Sequence[int]) -> Program:
    """Return the program with a rank per replica of every stage.

    Args:
        program: of stages with meshes of their own; beside its compute a stage with replicas adds gradients and nothing else.
        widths: replicas of each rank.

    Raises:
        ProgramError: a row of a stage with replicas belongs to no microbatch, or a round is not whole.
    """
    if max(widths) == 1:
        return program
    first = np.cumsum([0, *widths])[:-1].tolist()
    microbatch = _microbatches(program)
    lead, replicas = _rounds(program, widths)
    kept = np.flatnonzero(lead == np.arange(program.size))
    number = np.full(program.size, -1, np.int64)
    number[kept] = np.arange(len(kept))
    items: dict[tuple[int, tuple[int, ...]], int] = {}
    streams: dict[tuple[int, str], int] = {}
    item, rank, held = [], [], []
    for row in kept.tolist():
        old = int(program.item[row])
        where = [int(program.stream_rank[s]) for s in _entries(program.stream_offsets, program.streams, row)]
        places = tuple([first[s] + int(microbatch[row]) % widths[s] for s in where])
        if replicas[row]:
            places = tuple(range(first[where[0]], first[where[0]] + widths[where[0]]))
        item.append(items.setdefault((old, places), len(items)))
        rank.append(places[0])
        lanes = [program.stream_lane[s] for s in _entries(program.stream_offsets, program.streams, row)]
        if program.kind[row] == TRANSFER:
            lanes = [f"pp>{places[1]}", f"pp<{places[0]}"]
        named = zip(places, lanes * (len(places) // len(lanes)), strict=True)
        held.append([streams.setdefault(key, len(streams)) for key in named])
    columns: dict[str, Any] = {
        "item": np.array(item, np.int32),
        "rank": np.array(rank, np.int32),
        "streams": np.array([s for some in held for s in some], np.int32),
        "stream_offsets": np.cumsum([0, *map(len, held)]).astype(np.int64),
        "stream_rank": np.array([place for place, _ in streams], np.int32),
        "rank_weight": np.repeat(program.rank_weight / np.array(widths), widths),
        **{name: column[kept] for name in _COPIED if len(column := getattr(program, name))},
        **_after(program, number[lead], len(kept)),
    }
    for column in columns.values():
        frozen(column)
    return replace(
        program,
        axes=(("pp", sum(widths)),),
        items=tuple([_item(program.items[old], places) for old, places in items]),
        stream_lane=tuple([lane for _, lane in streams]),
        resident=_repeated(program.resident, widths),
        host_resident=_repeated(program.host_resident, widths),
        nvme_resident=_repeated(program.nvme_resident, widths),
        stages=tuple(_meshes(program.stages, widths)),
        **columns,
    )


def _entries(starts: NDArray[Any], entries: NDArray[Any], row: int) -> list[int]:
    found: list[int] = entries[starts[row] : starts[row + 1]].tolist()
    return found


def _microbatches(program: Program) -> Ints:
    """Of every row the microbatch to which it belongs: its own, of an update that of the backward before it; -1 = none."""
    found = program.microbatch.astype(np.int64)
    before = np.full(program.size, -1, np.int64)
    before[program.row_of_stream_entry] = program.previous
    updates = np.flatnonzero((program.kind == COMPUTE) & (found < 0) & (before >= 0))
    found[updates] = found[before[updates]]
    return found


def _rounds(program: Program, widths: Sequence[int]) -> tuple[Ints, NDArray[np.bool_]]:
    """Of every row the one that stands for it, the first of its round where replicas do it together, and whether they do.

    Raises:
        ProgramError: the rows of a stage are no whole rounds.
    """
    lead, together = np.arange(program.size), np.zeros(program.size, np.bool_)
    for stage, width in enumerate(widths):
        rows = np.flatnonzero((program.kind == COLLECTIVE) & (program.rank == stage))
        if width == 1 or not len(rows):
            continue
        if len(rows) % width:
            raise ProgramError(f"rank {stage} has {len(rows)} sums of gradients, which {width} replicas do not share")
        together[rows] = True
        lead[rows] = np.repeat(rows[::width], width)
    return lead, together


def _after(program: Program, number: Ints, count: int) -> dict[str, Any]:
    """What the new rows wait for, one that stands for several for what all of these do."""
    row = np.repeat(number, np.diff(program.after_offsets))
    pairs = np.unique(row * count + number[program.after])
    row, other = pairs // count, pairs % count
    return {
        "after": other[row != other].astype(np.int32),
        "after_offsets": offsets(row[row != other], count),
    }


def _item(item: Item, places: tuple[int, ...]) -> Item:
    """What the ranks at some places run; a link joins them, along the pipeline that they make now."""
    if not isinstance(item, Link):
        return item
    ends = tuple([End(1, end.parts, end.copies) for end in item.ends])
    several = len(places) > 1
    return replace(item, pipeline_ranks=places if several else (), group=("pp",) if several else item.group, ends=ends)


def _repeated(effects: tuple[Effect, ...], widths: Sequence[int]) -> tuple[Effect, ...]:
    return tuple([effect for effect, width in zip(effects, widths, strict=False) for _ in range(width)])


def _meshes(stages: Sequence[StageMesh], widths: Sequence[int]) -> Iterator[StageMesh]:
    """Of every replica its part of the mesh of its stage."""
    for mesh, width in zip(stages, widths, strict=True):
        axes = tuple([(name, 1 if name == "dp" else size) for name, size in mesh.axes])
        own = mesh.ranks // width
        yield from (StageMesh(axes, mesh.first + replica * own) for replica in range(width))
