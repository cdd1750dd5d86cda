"""Memory walk: how full each rank is at every instant of a step, its peak, and what is live there.

The program says what each row allocates at its START, frees at its END and holds only in between (a mark); the trace
says when.  The level of a rank is

    level(t) = resident + start effects with start <= t - end effects with end <= t + marks with start <= t < end

and its peak is the maximum over t.  Because a level is looked at only when everything of that instant has happened,
memory freed at t can be used again at t ("frees come before allocations"), and a row of no length holds nothing.

A stream runs its rows one after another, so its edges are already in time order: the walk merges the few streams of a
rank instead of sorting all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.program.program import CATEGORIES, Program, Tensor, bytes_by_category
from simulator.program.trace import Trace

__all__ = [
    "LiveTensors",
    "MemoryReport",
    "device_bytes",
    "memory_peaks",
    "memory_timeline",
    "no_places",
    "reserved_by",
]

_UNALLOCATED = ("context", "fragmentation")
_NOTHING = 2.0**-30
"""Parts smaller than this are rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensors:
    """Tensors of one name that are live at a peak: how many, and their bytes together."""

    name: str
    category: str
    count: int
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryReport:
    """The fullest instant of each rank.

    Args:
        time: [ranks] seconds: the first instant of the peak.
        by_category: [ranks, len(CATEGORIES)] bytes at that instant.
        program: the program that was walked.
        trace: the times it was walked with.
    """

    time: NDArray[np.float64]
    by_category: NDArray[np.float64]
    program: Program
    trace: Trace

    @property
    def total(self) -> NDArray[np.float64]:
        """[ranks] bytes at the peak, all categories: what the GPU has reserved."""
        out: NDArray[np.float64] = self.by_category.sum(axis=1)
        return out

    @property
    def allocated(self) -> NDArray[np.float64]:
        """[ranks] bytes at the peak that tensors hold: the total without context and fragmentation."""
        kept = [i for i, name in enumerate(CATEGORIES) if name not in _UNALLOCATED]
        out: NDArray[np.float64] = self.by_category[:, kept].sum(axis=1)
        return out

    @property
    def fullest(self) -> int:
        """The rank with the highest peak; the lowest such number."""
        return int(np.argmax(self.total))

    def live(self, rank: int) -> tuple[LiveTensors, ...]:
        """Return what is live on a rank at its peak, largest first; the bytes sum to `total[rank]`.

        Tensors are added up by name and category.  A tensor that was freed in part counts as one with the bytes left.
        """
        program, now = self.program, self.time[rank]
        own = np.flatnonzero(program.rank == rank)
        started, ended = self.trace.start[own] <= now, self.trace.end[own] <= now
        net = np.zeros(len(program.effects), np.int64)
        for column, rows, sign in (
            (program.start_effect, own[started], 1),
            (program.mark_effect, own[started & ~ended], 1),
            (program.end_effect, own[ended], -1),
        ):
            if len(column):
                effects = column[rows]
                net += sign * np.bincount(effects[effects >= 0], minlength=len(net))
        resident = program.resident[rank].tensors if program.resident else ()
        changed = ((tensor, int(net[i])) for i in np.flatnonzero(net) for tensor in program.effects[i].tensors)
        lines = _added_up([(tensor, 1) for tensor in resident] + list(changed))
        kept = float(self.by_category[rank, CATEGORIES.index("fragmentation")])
        return _fragmented(lines, kept)


def _fragmented(lines: tuple[LiveTensors, ...], most: float) -> tuple[LiveTensors, ...]:
    """Lines with no more than `most` bytes of fragmentation together (the allocator gave the rest back)."""
    total = sum(line.bytes for line in lines if line.category == "fragmentation")
    if total <= most:
        return lines
    cut = [replace(x, bytes=x.bytes * most / total) if x.category == "fragmentation" else x for x in lines]
    return tuple(sorted((x for x in cut if x.bytes > 0), key=lambda x: (-x.bytes, x.category, x.name)))


def _added_up(tensors: list[tuple[Tensor, int]]) -> tuple[LiveTensors, ...]:
    """Net tensors (negative: freed under another effect than the one that allocated them) -> lines, largest first."""
    counts: dict[tuple[str, str], int] = {}
    allocated: dict[tuple[str, str], float] = {}
    freed: dict[tuple[str, str], float] = {}
    for tensor, count in tensors:
        key = (tensor.name, tensor.category)
        if count > 0:
            counts[key] = counts.get(key, 0) + count
            allocated[key] = allocated.get(key, 0.0) + count * tensor.bytes
        else:
            freed[key] = freed.get(key, 0.0) - count * tensor.bytes
    lines = []
    for key in {**allocated, **freed}:
        size = allocated.get(key, 0.0)
        left = size - freed.get(key, 0.0)
        if abs(left) > _NOTHING * max(size, 1.0):
            count = math.ceil(counts[key] * left / size - _NOTHING) if size else 0
            lines.append(LiveTensors(name=key[0], category=key[1], count=count, bytes=left))
    return tuple(sorted(lines, key=lambda line: (-line.bytes, line.category, line.name)))


def memory_peaks(
    program: Program,
    trace: Trace,
    window: tuple[float, float] | None = None,
    capacity: float | NDArray[np.float64] = math.inf,
) -> MemoryReport:
    """Return the peak of every rank within the step, or within a window (start, end) [s] of it.

    Freed memory that the allocator keeps (category fragmentation, but that of a moment, a mark) is given back when the device is full, so
    it stands only as far as there is room: of a rank that would exceed its `capacity` [B] the peak is that of all else, and such memory
    fills up what is left.

    Raises:
        ProgramError: a row changes the memory of a rank none of whose streams it holds.

    >>> from simulator.program.builder import ProgramBuilder, plain_segment
    >>> build = ProgramBuilder()
    >>> stream, layer = build.add_stream(build.add_rank()), build.add_item(plain_segment("layer"))
    >>> saved = build.add_effect(Tensor(name="saved", category="activations", bytes=8.0))
    >>> rows = [build.add_row(layer, stream, start_effect=saved) for _ in range(2)]
    >>> trace = Trace(start=np.array([0.0, 1.0]), end=np.array([1.0, 2.0]), engine="given")
    >>> report = memory_peaks(build.build(), trace)
    >>> report.total.tolist(), report.time.tolist(), report.live(0)[0].count
    ([16.0], [1.0], 2)
    """

    resident, sizes = _resident(program), program.effect_bytes
    time, by_category = _walk(program, trace, window, resident, sizes)
    full, kept = by_category.sum(axis=1) > capacity, CATEGORIES.index("fragmentation")
    if full.any() and (resident[:, kept].any() or sizes[:, kept].any()):  # there is something to give back
        tight, less = resident.copy(), sizes.copy()
        tight[:, kept] = 0.0
        less[_stood(program), kept] = 0.0
        when, least = _walk(program, trace, window, tight, less)
        most = np.maximum(0.0, by_category[:, kept] - least[:, kept])
        least[:, kept] += np.minimum(most, np.maximum(0.0, capacity - least.sum(axis=1)))
        time[full], by_category[full] = when[full], least[full]
    return MemoryReport(time=time, by_category=by_category, program=program, trace=trace)


def no_places(rank: int) -> float:
    """Return the bytes of places of no use on a rank of which nothing is known: none."""
    return 0.0


def reserved_by(report: MemoryReport, rank: int, places: float, capacity: float) -> float:
    """Return what a rank's allocator holds at most [B]: tensors, and free places that nothing fits into, as far as there is room.

    Args:
        places: bytes of such places (`simulator.lowering.kept_places`); memory that is known to stand idle is among them.
    """
    row = report.by_category[rank]
    context, known = (float(row[CATEGORIES.index(name)]) for name in _UNALLOCATED)
    tensors = float(report.allocated[rank])
    return tensors + min(max(places, known), max(known, capacity - context - tensors))


def device_bytes(report: MemoryReport, rank: int, reserved: float) -> float:
    """Return what a driver's tool, such as nvidia-smi, shows of a rank whose allocator holds so much [B]: the context comes to it."""
    return reserved + float(report.by_category[rank, CATEGORIES.index("context")])


def _stood(program: Program) -> NDArray[np.int64]:
    """Numbers of the effects of rows that allocate or free, those of marks left out."""
    numbers: NDArray[np.int64] = np.unique(np.concatenate([program.start_effect, program.end_effect]))
    return numbers[numbers >= 0]


def _walk(
    program: Program,
    trace: Trace,
    window: tuple[float, float] | None,
    resident: NDArray[np.float64],
    sizes: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (instant [s], bytes by category) of the fullest instant of every rank."""
    from simulator.report import memory_kernel

    walk_memory: Any = memory_kernel.walk_memory
    low, high = (0.0, math.inf) if window is None else window
    time = np.zeros(program.ranks)
    net = np.zeros((program.ranks, len(sizes)), np.int64)
    given = (program.start_effect, program.end_effect, program.mark_effect)
    columns = [column if len(column) else np.full(program.size, -1, np.int32) for column in given]
    bad = walk_memory(
        program.rank,
        program.stream_rank,
        program.stream_offsets,
        program.streams,
        trace.start,
        trace.end,
        *columns,
        np.ascontiguousarray(sizes.sum(axis=1)),
        np.ascontiguousarray(resident.sum(axis=1)),
        low,
        high,
        time,
        net,
    )
    if bad >= 0:
        raise ProgramError(
            f"a row changes the memory of a rank whose streams it holds, but row {bad} ({program.label(bad)}) of rank "
            f"{int(program.rank[bad])} holds none of its streams. Give it one, or move the effect to a row that does."
        )
    return time, resident + net @ sizes


def memory_timeline(
    program: Program, trace: Trace, rank: int, capacity: float = math.inf
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (times [s], bytes [times, categories]) of one rank: entry i holds from times[i] until times[i + 1].

    The first time is 0 (what is resident), the last one that of the last change.  Freed memory that the allocator keeps stands
    only as far as there is room under `capacity` [B], as in `memory_peaks`.
    """
    own = np.flatnonzero(program.rank == rank)
    times, effects, signs = [], [], []
    for column, at, sign in (
        (program.start_effect, trace.start, 1.0),
        (program.mark_effect, trace.start, 1.0),
        (program.mark_effect, trace.end, -1.0),
        (program.end_effect, trace.end, -1.0),
    ):
        if len(column):
            rows = own[column[own] >= 0]
            times.append(at[rows])
            effects.append(column[rows])
            signs.append(np.full(len(rows), sign))
    base = _resident(program)[rank]
    if not times:
        return np.zeros(1), base[np.newaxis, :]
    moments, slot = np.unique(np.concatenate([[0.0], *times]), return_inverse=True)
    change = np.zeros((len(moments), len(CATEGORIES)))
    change[0] = base
    delta = program.effect_bytes[np.concatenate(effects)] * np.concatenate(signs)[:, np.newaxis]
    for category in np.flatnonzero(delta.any(axis=0)):
        change[:, category] += np.bincount(slot[1:], weights=delta[:, category], minlength=len(moments))
    levels = np.cumsum(change, axis=0)
    kept = CATEGORIES.index("fragmentation")
    stood = _stood(program)
    lasting = np.bincount(
        slot[1:], weights=delta[:, kept] * np.isin(np.concatenate(effects), stood), minlength=len(moments)
    )
    idle = base[kept] + np.cumsum(lasting)
    room = np.maximum(0.0, capacity - (levels.sum(axis=1) - idle))
    levels[:, kept] -= np.maximum(0.0, idle - room)
    return moments, levels


def _resident(program: Program) -> NDArray[np.float64]:
    """[ranks, categories] bytes that stand through the whole step."""
    if not program.resident:
        return np.zeros((program.ranks, len(CATEGORIES)))
    return bytes_by_category(program.resident)
