"""A capture as a program: the same rows, items and rules as a plan's, so that it is priced and run like one.

events --rows.cut--> runs --tables--> segments and links --> Program       memory: effects at the edges of rows
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from simulator.capture.meetings import connected, ordered
from simulator.capture.mesh import mesh_of
from simulator.capture.record import Capture, Event, Storage
from simulator.capture.rows import Run, block_of, cut
from simulator.errors import SpecError
from simulator.plan.framework import load_framework
from simulator.program.builder import ProgramBuilder
from simulator.program.calls import read_call
from simulator.program.operator_table import operator_table
from simulator.program.prices import account_of
from simulator.program.program import (
    COLLECTIVE,
    COMPUTE,
    EAGER,
    TRANSFER,
    Link,
    Program,
    Segment,
    Tensor,
)

__all__ = ["captured_program"]

_ACCOUNT_OF_MIX = "dp"


def captured_program(captures: Capture | Sequence[Capture], framework: str = "") -> Program:
    """Return the program of a step.

    Args:
        captures: of one rank, or of all ranks of a pipeline.
        framework: the profile whose host costs apply; "" = the host costs nothing.

    Raises:
        SpecError: a rank of the pipeline is missing, messages of two ranks do not match, or groups are no grid of the world.
    """
    given = [captures] if isinstance(captures, Capture) else captures
    captures = connected(given)
    if len(captures) < len(given):
        alone = min({capture.rank for capture in given} - {capture.rank for capture in captures})
        raise SpecError(
            f"{given[0].script}: ranks {captures[0].rank} and {alone} exchange no messages: they are no pipeline. Way out: one of them"
        )
    ranks = [capture.rank for capture in captures]
    axes, spans = mesh_of(captures)
    replicas = math.prod(size for name, size in axes if name not in ("tp", "pp"))
    tokens = max(capture.tokens for capture in captures)
    build = ProgramBuilder(captures[0].script, axes, framework, tokens * replicas)
    runs = [cut(capture, ranks) for capture in captures]
    sides = [
        _Side(build, number, capture, runs[number], spans[number], ranks, framework)
        for number, capture in enumerate(captures)
    ]
    items: dict[Any, int] = {}
    for meeting in ordered(captures, runs):
        mine = [(sides[i], number) for i, number in meeting.runs]
        side, first = mine[0]
        key = side.key(first)
        if key not in items:
            items[key] = build.add_item(_link(key) if key[0] == "link" else _segment(key))
        start, end, mark = side.effects.of(first, build)
        row = build.add_row(
            items[key],
            [each.lane(number) for each, number in mine],
            after=sorted({each.row_of[event] for each, number in mine for event in each.runs[number].after}),
            start_effect=start,
            end_effect=end,
            mark_effect=mark,
        )
        for each, number in mine:
            each.row_of.update(dict.fromkeys(each.runs[number].events, row))
    return build.build()


class _Side:
    """One rank of the program in the making."""

    def __init__(
        self,
        build: ProgramBuilder,
        place: int,
        capture: Capture,
        runs: Sequence[Run],
        spans: Sequence[tuple[str, ...]],
        ranks: Sequence[int],
        framework: str,
    ) -> None:
        self.build, self.place, self.capture, self.runs, self.spans, self.ranks = (
            build,
            place,
            capture,
            runs,
            spans,
            ranks,
        )
        build.add_rank(weight=capture.world / len(ranks))
        self.effects = _Effects(capture, runs)
        build.set_resident(place, *self.effects.resident(), *_beside(capture, framework))
        self.row_of: dict[int, int] = {}
        self._lanes: dict[str, int] = {}
        self._final = next((run for run in reversed(runs) if run.stream == 0), None)

    def key(self, number: int) -> tuple[Any, ...]:
        """What makes a run the same as another one."""
        run, events = self.runs[number], self.capture.events
        first = events[run.events[0]]
        met = self.capture.meets(first, self.ranks)
        if not met and not (first.communicates and (run.stream != 0 or not first.waits)):
            return _table_key(events, run.events, self.spans, run is self._final)
        members = () if not met else self.capture.groups[first.group].ranks
        if first.work in ("send", "recv"):
            members = (self.capture.rank, first.peer) if first.work == "send" else (first.peer, self.capture.rank)
        return _link_key(first, ("pp",) if met else self.spans[first.group], tuple(map(self.ranks.index, members)))

    def lane(self, number: int) -> int:
        """The stream of a run; messages have one per neighbour and direction, as those of a plan have."""
        run = self.runs[number]
        first = self.capture.events[run.events[0]]
        name = "compute" if run.stream == 0 else f"stream{run.stream}"
        if first.work in ("send", "recv"):
            name = f"pp{'>' if first.work == 'send' else '<'}{self.ranks.index(first.peer)}"
        if name not in self._lanes:
            self._lanes[name] = self.build.add_stream(self.place, name)
        return self._lanes[name]


# ---- items ----


def _link_key(event: Event, group: tuple[str, ...], members: tuple[int, ...]) -> tuple[Any, ...]:
    block = block_of(event.path)[0] or event.phase
    name = f"{event.work} of {block}"
    if event.work in ("send", "recv"):
        name = f"{'activations' if members[0] < members[1] else 'gradients'} {members[0]} to {members[1]}"
    return ("link", name, event.work, event.message, event.dtype, group, members)


def _link(key: tuple[Any, ...]) -> Link:
    _, name, work, message, dtype, group, members = key
    moves = work in ("send", "recv")
    return Link(
        name=name,
        kind=TRANSFER if moves else COLLECTIVE,
        message=message,
        dtype=dtype,
        group=group,
        pipeline_ranks=members,
        account=account_of(group) if len(group) == 1 else _ACCOUNT_OF_MIX,
        collective="" if moves else work,
    )


def _table_key(
    events: Sequence[Event], numbers: Iterable[int], spans: Sequence[tuple[str, ...]], last: bool
) -> tuple[Any, ...]:
    """What makes two runs the same: their operators, named within their block; after the last one the host begins another step."""
    mine = [events[n] for n in numbers]
    side = "backward" if mine[0].phase == "recompute" else mine[0].phase
    block = block_of(mine[0].path)[0] or ("loss" if side != "optimizer" else "update")
    return ("table", f"{block} {side}", side, last, tuple(_operator(event, spans) for event in mine))


def _operator(event: Event, spans: Sequence[tuple[str, ...]]) -> tuple[Any, ...]:
    inner = block_of(event.path)[1]
    label = f"{inner} {event.name}" if inner else event.name
    group = spans[event.group] if event.communicates else ()
    return (
        label, COLLECTIVE if event.communicates else COMPUTE, event.work, event.shape, event.call, event.dtype, event.flops,
        event.read, event.written, event.message, group, event.phase, event.launches,
    )  # fmt: skip


_COLUMNS = (
    "label", "kind", "work", "shape", "call", "dtype", "flops", "read", "written", "message", "group", "phase", "launches",
)  # fmt: skip
"""Columns of an operator as `_operator` gives them."""


def _segment(key: tuple[Any, ...]) -> Segment:
    _, name, side, last, operators = key
    columns = dict(zip(_COLUMNS, zip(*operators, strict=True), strict=True))
    n = len(operators)
    columns["call"] = tuple(read_call(word, name) for word in columns["call"])
    columns |= {"part": ("",) * n, "beside": (-1,) * n, "captured": (EAGER,) * n}
    table = operator_table(name, columns)
    return Segment(name=name, pieces=((table, 1),), phase=side, synchronises=last)


# ---- memory ----


def _beside(capture: Capture, framework: str) -> tuple[Tensor, ...]:
    """What libraries hold on a GPU beside tensors, as the framework's profile says."""
    if not framework:
        return ()
    profile = load_framework(framework)
    groups = sum(len(group.ranks) > 1 for group in capture.groups)
    return (
        Tensor(name="GEMM workspace", category="workspace", bytes=profile.workspace),
        Tensor(name="driver context and kernels", category="context", bytes=profile.context),
        Tensor(name="communicator buffers", category="context", bytes=groups * profile.communicator),
    )


class _Effects:
    """Which rows allocate and free which storages.

    The allocator hands memory out when the host asks, whichever stream the work is on: so rows of the first stream bear the effects of
    events of all streams, in the order in which they were issued.
    """

    def __init__(self, capture: Capture, runs: Sequence[Run]) -> None:
        first, last = np.full(len(capture.events), -1, np.int64), np.full(len(capture.events), -1, np.int64)
        for number, run in enumerate(runs):
            if run.stream == 0:
                first[run.events] = last[run.events] = number
        bearing = np.flatnonzero(first >= 0)
        self.rows = int(first[bearing[-1]]) + 1 if len(bearing) else 0
        self.begin = int(first[bearing[0]]) if len(bearing) else 0
        self.first, self.last = first, np.maximum.accumulate(last) if len(last) else last
        following = np.where(first >= 0, first, self.rows)[::-1]
        self.first = np.minimum(np.minimum.accumulate(following)[::-1], self.rows - 1) if len(first) else first
        self._known: dict[tuple[Tensor, ...], int] = {}
        self._resident: list[Storage] = []
        self.starts: list[list[Storage]] = [[] for _ in runs]
        self.ends: list[list[Storage]] = [[] for _ in runs]
        self.inside: list[list[Storage]] = [[] for _ in runs]
        self.events = len(capture.events)
        for storage in capture.storages:
            self._place(storage)

    def _place(self, storage: Storage) -> None:
        last = self.events - 1
        if (storage.born < 0 and storage.died is None) or not self.rows:
            self._resident.append(storage)
            return
        first = self.begin if storage.born < 0 else int(self.first[min(storage.born, last)])
        final = self.rows - 1 if storage.died is None else int(self.last[max(0, min(storage.died, last))])
        if first >= final and storage.born >= 0 and storage.died is not None:
            self.inside[first].append(storage)
        else:
            self.starts[first].append(storage)
            self.ends[max(first, final)].append(storage)

    def resident(self) -> tuple[Tensor, ...]:
        return _tensors(self._resident)

    def of(self, row: int, build: ProgramBuilder) -> tuple[int, int, int]:
        """Numbers of the effects of a row: at its start, at its end, while it runs."""
        return (
            self._effect(_tensors(self.starts[row]), build),
            self._effect(_tensors(self.ends[row]), build),
            self._effect(_tensors(_most(self.inside[row])), build),
        )

    def _effect(self, tensors: tuple[Tensor, ...], build: ProgramBuilder) -> int:
        if not tensors:
            return -1
        if tensors not in self._known:
            self._known[tensors] = build.add_effect(*tensors)
        return self._known[tensors]


def _most(storages: Sequence[Storage]) -> list[Storage]:
    """Those that stand together at the fullest moment."""
    moments = {storage.born for storage in storages}
    if not moments:
        return []

    def standing(moment: int) -> list[Storage]:
        return [s for s in storages if s.born <= moment and (s.died is None or moment <= s.died)]

    return max((standing(moment) for moment in sorted(moments)), key=lambda found: sum(s.bytes for s in found))


def _tensors(storages: Iterable[Storage]) -> tuple[Tensor, ...]:
    """One tensor per category and name, with their bytes together."""
    total: Counter[tuple[str, str]] = Counter()
    for storage in storages:
        total[(storage.category, _shown(storage))] += storage.bytes  # type: ignore[assignment]
    return tuple(Tensor(name=name, category=category, bytes=float(size)) for (category, name), size in total.items())


def _shown(storage: Storage) -> str:
    """A storage as the memory report names it: states by what they are, activations and temporaries by their shape."""
    if storage.category in ("weights", "gradients", "optimizer_states"):
        return storage.category.replace("_", " ")
    return storage.name
