"""The rows of a program while passes add them: order, streams and waits, without bytes, seconds or names.

Many plans have the same rows.  What rows depend on is a schedule's order and a few small facts that passes find (which item an
action runs, which effects it has, how deep weights are prefetched), so a pass adds rows by a *step*:

    structure = extended(structure, step, facts)            step(draft, *facts) adds rows to a copy of the structure

A step sees the rows before it and its facts, nothing else, so that equal steps after the same structure give the same rows: they are
run once and kept (the latest `KEPT_BYTES` of them).  A structure that others may share is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import refuse
from simulator.lowering.resolve.asynchronous_rules import update_mask
from simulator.lowering.steps.ordered import ordered
from simulator.lowering.steps.pattern import Pattern, extreme
from simulator.program.program import COLLECTIVE
from simulator.program.ragged import ranges
from simulator.remembered import Remembered
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["KEPT_BYTES", "Batch", "Structure", "Whole", "begun", "extended", "started"]

Ints = NDArray[np.int64]
Whole = NDArray[Any]
"""Whole numbers of any width; `emit` gives them their final one."""
KEPT_BYTES = 256 * 2**20
"""Bytes of structures kept for plans to come."""
MOST_ROWS = 6_000_000
"""Of a program: each takes about 250 bytes and a microsecond or two on the way to a prediction."""
_ROW_BYTES = 100
"""Bytes of a row of a batch, all columns."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """Rows added by one pass, as columns; a missing participant is -1."""

    item: Ints
    kind: int
    rank: Ints
    streams: Ints
    action: Whole | int = -1
    chunk: Whole | int = -1
    microbatch: Whole | int = -1
    part: Whole | int = 0
    count: Whole | int = 1
    slice: Whole | int = 0
    slices: Whole | int = 1
    second_chunk: Whole | int = -1
    second_microbatch: Whole | int = -1
    step: Whole | int = 0


@dataclass(kw_only=True, eq=False)
class Structure:
    """Rows under construction, over an order; equal only to itself."""

    placement: Placement
    order: PipelineOrder
    pattern: Pattern
    microbatches: int
    """Of one step; `order` numbers those of all steps through."""
    steps: int
    """Steps that run into each other in `order`; 1 where every step ends with a flush."""
    updates: NDArray[np.bool_]
    """Per action: whether an update follows it at once, in the row after its last; empty where updates end the step."""
    scale: Ints
    """Per action: index into `sizes`."""
    sizes: tuple[tuple[int, int, int, float], ...]
    """How much of a microbatch actions run: (count, part, parts, weight); () where every action is one whole microbatch."""

    streams: dict[tuple[int, str], int]
    batches: list[Batch]
    rows: int = 0
    waits: list[tuple[Ints, Ints]]
    """(rows that wait, rows waited for), pairwise."""
    touched: list[tuple[str, Ints, Ints]]
    """("start" | "end" | "mark", rows, effect numbers)."""
    variant: Ints
    """Per action: how it is cut (`instances`)."""
    first_row: Ints
    """Per action: its first compute row; `last_row`: its last."""
    last_row: Ints
    waited: tuple[Ints, Ints]
    """(pipeline rank, row) pairwise: what the next part of the update waits for."""
    updated: Ints
    """Per rank: the row of its optimizer."""
    result: Any = None
    """What the last step returned."""
    added: int = 4096
    """Bytes of what the last step added, or about as much."""
    held: int = 4096
    """Bytes of all that it consists of, also what others share."""
    shared: bool = False
    """Whether it is kept for other plans, so that it must not be changed."""

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return self.order.ranks

    def draft(self) -> Structure:
        """Return a copy to which rows may be added."""
        out: Structure = object.__new__(Structure)
        vars(out).update(vars(self))
        out.streams, out.batches, out.waits = dict(self.streams), list(self.batches), list(self.waits)
        out.touched, out.result, out.shared = list(self.touched), None, False
        return out

    def stream(self, rank: int, lane: str) -> int:
        """Number of a stream; made at first use."""
        return self.streams.setdefault((rank, lane), len(self.streams))

    def lanes(self, lane: str) -> Ints:
        """Per rank: the number of its stream of this lane."""
        return np.array([self.stream(r, lane) for r in range(self.ranks)], np.int64)

    def step_of(self, microbatch: Whole) -> Whole | int:
        """Step of each of these microbatches, which are numbered through the steps."""
        return microbatch // self.microbatches if self.steps > 1 else 0

    def of_each_step(self, kinds: tuple[int, ...], last: bool) -> NDArray[np.bool_]:
        """Return [actions] whether each is the last (or first) of these kinds of its chunk, lane and step."""
        step = np.asarray(self.step_of(self.order.microbatch), np.int64)
        return extreme(self.order, self.pattern.home * self.steps + step, kinds, last)

    def add_rows(self, batch: Batch) -> Ints:
        """Append rows; returns their numbers."""
        n = len(batch.item)
        self.batches.append(batch)
        self.check_size(n)
        self.rows += n
        return np.arange(self.rows - n, self.rows, dtype=np.int64)

    def on_lane(self, lane: str, item: Ints, rank: Ints, kind: int = COLLECTIVE, **columns: Any) -> Ints:
        """Append rows that each hold this lane of their rank; returns their numbers."""
        return self.add_rows(Batch(item=item, kind=kind, rank=rank, streams=self.lanes(lane)[rank][:, None], **columns))

    def across(self, lane: str, item: Ints, ranks: Sequence[int], **columns: Any) -> Ints:
        """Append collectives that each hold this lane of all these ranks; returns their numbers."""
        streams = np.repeat(self.lanes(lane)[np.array(ranks)][None, :], len(item), axis=0)
        first = np.full(len(item), ranks[0])
        return self.add_rows(Batch(item=item, kind=COLLECTIVE, rank=first, streams=streams, **columns))

    def check_size(self, more: int) -> None:
        """Refuse to grow by so many rows beyond `MOST_ROWS`, before anything as long as they are is made."""
        if self.rows + more > MOST_ROWS:
            refuse(
                f"the program of a step has at most {MOST_ROWS:,} rows",
                f"{self.microbatches:,} microbatches make {self.rows + more:,} or more",
                "fewer or larger microbatches (microbatch_size, or a smaller global_batch_size: from some hundred microbatches "
                "on a step takes as much longer as it has more of them)",
            )

    def wait(self, rows: Any, on: Any) -> None:
        """Let `rows` wait for `on`, pairwise."""
        rows, on = np.atleast_1d(rows).astype(np.int64), np.atleast_1d(on).astype(np.int64)
        if len(rows):
            self.waits.append((rows, on))

    def touch(self, edge: str, rows: Any, effects: Any) -> None:
        """Give rows a memory effect at an edge; several at one edge add up."""
        rows = np.atleast_1d(rows).astype(np.int64, copy=False)
        if isinstance(effects, int):
            if effects >= 0 and len(rows):
                self.touched.append((edge, rows, np.full(len(rows), effects)))
            return
        numbers = np.asarray(effects, np.int64)
        keep = numbers >= 0
        if keep.all():
            self.touched.append((edge, rows, numbers))
        elif keep.any():
            self.touched.append((edge, rows[keep], numbers[keep]))

    def touch_each(self, edge: str, rows: Ints, effects: Ints) -> None:
        """As `touch`, of arrays; a row that comes several times (parts of a unit, both halves of a pair) gets them all."""
        rows, effects = rows[effects >= 0], effects[effects >= 0]
        turn = np.argsort(rows, kind="stable")
        fresh = np.ones(len(rows), bool)
        fresh[1:] = np.diff(rows[turn]) != 0
        if fresh.all():
            self.touch(edge, rows, effects)
            return
        first = np.flatnonzero(fresh)
        again = np.empty(len(rows), np.int64)
        again[turn] = ranges(0, np.diff(np.append(first, len(rows))))
        for some in np.split(np.argsort(again, kind="stable"), np.cumsum(np.bincount(again))[:-1]):
            self.touch(edge, rows[some], effects[some])

    def run_items(self, rows: Ints, items: Ints) -> None:
        """Say what these rows of the first batch run."""
        first = self.batches[0]
        column = first.item.copy()
        column[rows] = items
        self.batches[0] = replace(first, item=column)


Step = Callable[..., Any]
"""Adds rows to a draft; takes the draft and hashable facts, and returns what passes ask of it."""

_KEPT: Remembered[Structure] = Remembered(KEPT_BYTES, lambda structure: structure.added)


def started(schedule: Schedule, shape: Shape, steps: int) -> Structure:
    """Return the structure of a schedule's order, without a row.

    Raises:
        PlanError: the schedule has no order for this shape.
    """

    def make() -> Structure:
        placement, order, pattern = ordered(schedule, shape, steps)
        updates = update_mask(order, schedule, shape.microbatches)
        out = begun(placement, order, pattern, shape.microbatches, steps, updates)
        out.shared = True
        return out

    return _KEPT.get((schedule, shape, steps), make)


def begun(
    placement: Placement,
    order: PipelineOrder,
    pattern: Pattern,
    microbatches: int,
    steps: int = 1,
    updates: NDArray[np.bool_] | None = None,
) -> Structure:
    """Return the structure of an order, without a row, for one program."""
    none = np.zeros(0, np.int64)
    scale, sizes = _sizes(order)
    return Structure(
        placement=placement,
        order=order,
        pattern=pattern,
        microbatches=microbatches,
        steps=steps,
        updates=np.zeros(0, np.bool_) if updates is None else updates,
        scale=scale,
        sizes=sizes,
        streams={},
        batches=[],
        waits=[],
        touched=[],
        variant=none,
        first_row=none,
        last_row=none,
        waited=(none, none),
        updated=none,
    )


def extended(structure: Structure, step: Step, facts: tuple[Hashable, ...]) -> Structure:
    """Return the structure with what a step adds to it."""
    if not structure.shared:
        structure.result = step(structure, *facts)
        return structure
    return _KEPT.get((structure, step, facts), lambda: _extended(structure, step, facts))


def _extended(structure: Structure, step: Step, facts: tuple[Hashable, ...]) -> Structure:
    out = structure.draft()
    out.result = step(out, *facts)
    pairs = len(out.first_row) + sum(len(rows) for rows, _ in out.waits[len(structure.waits) :])
    pairs += sum(len(rows) for _, rows, _ in out.touched[len(structure.touched) :])
    out.added = 4096 + _ROW_BYTES * (out.rows - structure.rows) + 16 * pairs
    out.held = structure.held + out.added
    out.shared = True
    return out


def _sizes(order: PipelineOrder) -> tuple[Ints, tuple[tuple[int, int, int, float], ...]]:
    """Group actions by how much of a microbatch they run."""
    if (order.count == 1).all() and (order.parts == 1).all() and (order.weight == 1.0).all():
        return np.zeros(len(order.kind), np.int64), ()
    columns = np.stack([order.count, order.part, order.parts, order.weight], axis=1).astype(np.float64)
    sizes, scale = np.unique(columns, axis=0, return_inverse=True)
    return scale.reshape(-1), tuple((int(c), int(j), int(n), float(w)) for c, j, n, w in sizes)
