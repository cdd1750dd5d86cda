"""Every operator a row: a small program opened up, to see that segments lose nothing.

A compute row becomes one row per operator of its segment, in order, on the same stream; what the host adds becomes a row of its
own.  A collective that hides beside an operator is its exposed part.  Without interference both programs take the same time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costs.price import price
from simulator.costs.tables import machine_of, price_table
from simulator.errors import ProgramError
from simulator.hardware.cluster import Cluster
from simulator.plan.framework import load_framework
from simulator.program.prices import ACCOUNTS, Prices, account_of
from simulator.program.program import Link, Program, Segment

__all__ = ["MOST_ROWS", "expand_operators"]

MOST_ROWS = 2_000_000
"""Rows of the largest program that may be opened up."""


def expand_operators(program: Program, cluster: Cluster) -> tuple[Program, Prices]:
    """Return the program with a row per operator, and its prices.

    Raises:
        ProgramError: too many rows, or fused pairs (whose operators interleave).
    """
    prices = price(program, cluster)
    parts = [_parts(item, i, prices, program, cluster) for i, item in enumerate(program.items)]
    sizes = np.array([len(p) for p in parts])
    per_row = sizes[program.item]
    total = int(per_row.sum())
    if total > MOST_ROWS:
        raise ProgramError(
            f"a program of {program.size} rows opens up to {total} operators, more than {MOST_ROWS}. Way out: fewer microbatches "
            "or layers."
        )
    items = [part for rows in parts for part in rows]
    base = np.cumsum(sizes) - sizes
    first = np.cumsum(per_row) - per_row
    owner = np.repeat(np.arange(program.size), per_row)
    inside = np.arange(total) - first[owner]
    last = first + per_row - 1
    columns = {
        name: getattr(program, name)[owner]
        for name in ("kind", "action", "rank", "lane", "chunk", "microbatch", "step")
    }
    columns |= _ragged(program, owner, inside, first, last)
    columns |= {name: column[owner] for name in ("count", "slice", "slices") if len(column := getattr(program, name))}
    columns["part"] = (inside + first[owner] - first[owner - program.part[owner]]).astype(np.int16)
    columns["item"] = (base[program.item[owner]] + inside).astype(np.int32)
    columns["start_effect"] = np.where(inside == 0, program.start_effect[owner], -1).astype(np.int32)
    columns["end_effect"] = np.where(inside == per_row[owner] - 1, program.end_effect[owner], -1).astype(np.int32)
    columns["mark_effect"] = program.mark_effect[owner]
    rest: dict[str, Any] = {"items": tuple(part[0] for part in items), "blocks": (), **columns}
    opened = replace(program, **rest)
    return opened, _prices(items, prices)


Part = tuple[Segment | Link, float, float, NDArray[np.float64]]
"""Item, seconds, latency, seconds by account."""


def _parts(item: object, i: int, prices: Prices, program: Program, cluster: Cluster) -> list[Part]:
    """The operators of an item; a link is one part."""
    if isinstance(item, Link):
        return [(item, float(prices.occupancy[i]), float(prices.latency[i]), prices.account[i])]
    if not isinstance(item, Segment):
        raise ProgramError(f"a fused pair runs its operators interleaved and cannot be opened up: {program.name!r}")
    out: list[Part] = []
    axes = program.mesh_of(int(program.item_rank[i]))
    machine = machine_of(cluster, load_framework(program.framework).backend if program.framework else "nccl")
    for table, count in item.pieces:
        priced = price_table(table, machine, axes)
        rows: list[Part] = []
        for j, label in enumerate(table.label):
            name = account_of(table.group[j]) if table.group[j] else table.phase[j]
            account = np.zeros(len(ACCOUNTS))
            account[ACCOUNTS.index(name)] = priced.rows[j]
            rows.append((Segment(name=label, pieces=(), phase=item.phase), float(priced.rows[j]), 0.0, account))
        out.extend(rows * count)
    host = float(prices.account[i, ACCOUNTS.index("host")])
    if host or not out:
        account = np.zeros(len(ACCOUNTS))
        account[ACCOUNTS.index("host")] = host
        out.append((Segment(name="host", pieces=(), phase=item.phase), host, 0.0, account))
    return out


def _ragged(
    program: Program,
    owner: NDArray[np.int64],
    inside: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
) -> dict[str, NDArray[np.int64] | NDArray[np.int32]]:
    """Streams are those of the row; what the row waits for, its first operator waits for, at the other row's last one."""
    width = np.diff(program.stream_offsets)[owner]
    offsets = np.concatenate([[0], np.cumsum(width)])
    place = np.repeat(program.stream_offsets[owner] - offsets[:-1], width) + np.arange(offsets[-1])
    waits = np.where(inside == 0, np.diff(program.after_offsets)[owner], 0)
    after_offsets = np.concatenate([[0], np.cumsum(waits)])
    return {
        "stream_offsets": offsets.astype(np.int64),
        "streams": program.streams[place].astype(np.int32),
        "after_offsets": after_offsets.astype(np.int64),
        "after": last[program.after].astype(np.int32),
    }


def _prices(parts: list[Part], prices: Prices) -> Prices:
    n = len(parts)
    plain = Prices.plain(np.array([part[1] for part in parts]), np.array([part[2] for part in parts]))
    return replace(plain, account=np.array([part[3] for part in parts]), model=("operator",) * n)
