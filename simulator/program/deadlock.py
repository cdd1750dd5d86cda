"""Who waits for whom when no row can start any more: the ring behind a deadlock, in words."""

from __future__ import annotations

import numpy as np

from simulator.program.program import KIND_NAMES, Link, Program

__all__ = ["find_deadlock"]


def find_deadlock(program: Program) -> str:
    """Return, in words, the ring of rows that wait for each other; "" when every row can run.

    >>> from simulator.program.builder import ProgramBuilder, plain_segment
    >>> build = ProgramBuilder()
    >>> layer, streams = build.add_item(plain_segment("layer")), [build.add_stream(build.add_rank()) for _ in range(2)]
    >>> rows = build.add_row(layer, streams[0], after=[1]), build.add_row(layer, streams[1], after=[0])
    >>> print(find_deadlock(build.build()))
    no row can start any more (2 of 2 rows are left). Rank 0 waits in compute "layer" (row 0) for rank 1; rank 1 waits in compute "layer" (row 1) for rank 0. Let one of these rows come earlier in the order of its rank.
    """  # noqa: E501
    waits, left = _unmet_waits(program)
    if not left:
        return ""
    row = next(iter(left))
    path: list[int] = []
    place: dict[int, int] = {}
    while row not in place:
        place[row] = len(path)
        path.append(row)
        if row not in waits:
            return f"no row can start any more: row {row} ({program.label(row)}) holds no stream, so nothing can run it"
        row = waits[row][0]
    ring = path[place[row] :]
    low = ring.index(min(ring))
    ring = ring[low:] + ring[:low]
    told = [_tell_wait(program, waits, a, b) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
    more = f"; ... {len(told) - 12} more ..." if len(told) > 12 else ""
    text = "; ".join(told[:11] + told[-1:] if more else told)
    return (
        f"no row can start any more ({len(left)} of {program.size} rows are left). {text[0].upper()}{text[1:]}{more}. "
        "Let one of these rows come earlier in the order of its rank."
    )


def _tell_wait(program: Program, waits: dict[int, tuple[int, str]], row: int, other: int) -> str:
    item, here, there = program.items[program.item[row]], int(program.rank[row]), int(program.rank[other])
    if isinstance(item, Link):
        what = f'{item.collective or KIND_NAMES[item.kind]} "{item.name}" ({"+".join(item.group)}, row {row})'
    else:
        name = f'compute "{item.name}"' if program.action[row] < 0 else program.label(row)
        what = f"{name} (row {row})"
    behind = waits[row][1]
    whom = f"rank {there}" if there != here else f"its own row {other} ({program.label(other)})"
    return f"rank {here} waits in {what} for {whom}{behind}"


def _unmet_waits(program: Program) -> tuple[dict[int, tuple[int, str]], dict[int, None]]:
    """Run the rows without times; return, for each row left, one that it waits for and why; and all that are left."""
    streams = [s.tolist() for s in np.split(program.streams, program.stream_offsets[1:-1])] if program.size else []
    after = [a.tolist() for a in np.split(program.after, program.after_offsets[1:-1])] if program.size else []
    before: list[list[int]] = []
    tail: dict[int, int] = {}
    followers: list[list[int]] = [[] for _ in range(program.size)]
    for row in range(program.size):
        before.append([tail[s] for s in streams[row] if s in tail])
        tail.update(dict.fromkeys(streams[row], row))
        for other in before[row] + after[row]:
            followers[other].append(row)
    count = [len(before[row]) + len(after[row]) for row in range(program.size)]
    ready = [row for row in range(program.size) if count[row] == 0 and streams[row]]
    left = dict.fromkeys(range(program.size))
    while ready:
        row = ready.pop()
        del left[row]
        for other in followers[row]:
            count[other] -= 1
            if count[other] == 0:
                ready.append(other)
    waits: dict[int, tuple[int, str]] = {}
    for row in left:
        unmet = [(other, "") for other in after[row] if other in left]
        unmet += [(other, f", behind row {other} on its stream") for other in before[row] if other in left]
        if unmet:
            waits[row] = unmet[0]
    return waits, left
