"""What a schedule alone costs, in abstract time: the numbers of `dtsim schedule` (design 5b L)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine import run
from simulator.errors import PlanError
from simulator.lowering.abstract import abstract_program
from simulator.lowering.steps.ordered import ordered
from simulator.program.critical import critical_path
from simulator.program.prices import Prices
from simulator.program.program import COMPUTE, TRANSFER, Program
from simulator.program.trace import Trace
from simulator.report.frames import Record, Records, Tabular
from simulator.report.memory import memory_peaks
from simulator.report.schema import SCHEMA_VERSION
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_times import time_order
from simulator.studies.sizes import check_actions
from simulator.units import sane

__all__ = ["ScheduleFigures", "Times", "action_records", "check_times", "makespan_and_bubble", "schedule_figures"]

_ACTIONS = ("forward", "backward", "input_grad", "weight_grad", "optimizer", "pair")
"""Words for the column `action` of a program."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleFigures(Tabular):
    """Figures of one schedule and shape.

    Args:
        shape: pipeline ranks, microbatches, chunks per rank.
        makespan: end of the last action.
        bubble_fraction: 1 - busy / (ranks x makespan); waits for messages are idle.
        bubble_overhead: idle / busy.
        peak_activations: per rank, unit = one microbatch on one rank's share of one lane, given back after W (or B).
        peak_activations_if_freed_at_input_grad: the same, given back after I.
        longest_rank_span: the longest time from a rank's first start to its last end.
        longest_idle_in_span: the longest idle time inside such a span.
        busy, span: per rank, of one step: time in which it computes, and from its first start to its last end.
        messages: volume between ranks, both directions, unit = one microbatch's activations at a boundary.
        weight_copies: per rank.
    """

    schedule: str
    shape: Shape
    makespan: float
    bubble_fraction: float
    bubble_overhead: float
    peak_activations: NDArray[np.float64]
    peak_activations_if_freed_at_input_grad: NDArray[np.float64]
    longest_rank_span: float
    longest_idle_in_span: float
    busy: NDArray[np.float64]
    span: NDArray[np.float64]
    messages: float
    weight_copies: NDArray[np.int64]
    order: PipelineOrder
    program: Program
    prices: Prices
    trace: Trace

    @property
    def critical_path(self) -> dict[str, int]:
        """How many actions of each kind stand on the longest chain of actions and messages.

        Of schedules that never flush it leads through several steps.

        >>> schedule_figures("chimera", 6, 6).critical_path  # Li and Hoefler, SC 2021, figure 6
        {'backward': 10, 'forward': 6}
        """
        path = critical_path(self.program, self.prices, self.trace)
        path = path[self.program.kind[path] == COMPUTE]
        return dict(sorted(Counter(_ACTIONS[action] for action in self.program.action[path].tolist()).items()))

    def tables(self) -> dict[str, Records]:
        """`schedule`: one row; `ranks`: a row per pipeline rank; `actions`: a row per action, in order of time."""
        return {
            "schedule": lambda: [self.record()],
            "ranks": self._ranks,
            "actions": self._actions,
        }

    def record(self) -> dict[str, Any]:
        """Return the row of the table `schedule`."""
        return {
            "schedule": self.schedule,
            "ranks": self.shape.ranks,
            "microbatches": self.shape.microbatches,
            "chunks_per_rank": self.shape.chunks_per_rank,
            "makespan": self.makespan,
            "bubble_fraction": self.bubble_fraction,
            "bubble_overhead": self.bubble_overhead,
            "peak_activations": float(self.peak_activations.max()),
            "peak_activations_if_freed_at_input_grad": float(self.peak_activations_if_freed_at_input_grad.max()),
            "longest_rank_span": self.longest_rank_span,
            "messages": self.messages,
            "weight_copies": int(self.weight_copies.max()),
        }

    def _ranks(self) -> list[Record]:
        columns = (self.busy, self.makespan - self.busy, self.span, self.peak_activations, self.weight_copies)
        names = ("busy", "idle", "span", "peak_activations", "weight_copies")
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [{"rank": rank} | dict(zip(names, row, strict=True)) for rank, row in enumerate(rows)]

    def _actions(self) -> list[Record]:
        return [{"schedule": self.schedule, **row} for row in action_records(self.program, self.trace)]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim schedule`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "schedule": self.schedule,
            "makespan": self.makespan,
            "bubble_fraction": self.bubble_fraction,
            "bubble_overhead": self.bubble_overhead,
            "peak_activations": self.peak_activations.tolist(),
            "peak_activations_if_freed_at_input_grad": self.peak_activations_if_freed_at_input_grad.tolist(),
            "longest_rank_span": self.longest_rank_span,
            "longest_idle_in_span": self.longest_idle_in_span,
            "messages": int(self.messages) if self.messages == int(self.messages) else self.messages,
            "weight_copies": self.weight_copies.tolist(),
            "critical_path": self.critical_path,
            "orders": [line.split(",") for line in self.order.to_text().strip().split("\n")],
        }


def action_records(program: Program, trace: Trace) -> list[Record]:
    """Return a row per action of a program, in order of time: what the table `actions` of a schedule holds."""
    rows = np.flatnonzero(program.kind == COMPUTE)
    rows = rows[np.lexsort((program.rank[rows], trace.start[rows]))]
    columns = (program.rank, program.action, program.chunk, program.microbatch, program.lane, trace.start, trace.end)
    names = ("rank", "action", "chunk", "microbatch", "lane", "start", "end")
    found = [dict(zip(names, row, strict=True)) for row in zip(*(c[rows].tolist() for c in columns), strict=True)]
    return [row | {"action": _ACTIONS[row["action"]]} for row in found]


Times = float | Sequence[float]
"""One time for all ranks, or one per rank."""


def check_times(times: Mapping[str, Times]) -> None:
    """Refuse times of a schedule that cannot be, or of a magnitude that leaves no room to add them up.

    Raises:
        PlanError: names the time.
    """
    for name, given in times.items():
        for value in given if isinstance(given, Sequence) else (given,):
            if not (value >= 0 and sane(value)):
                raise PlanError(f"the {name} time of a schedule must be 0 or from 1e-30 to 1e30, but it is {value}")


def schedule_figures(
    name: str,
    ranks: int,
    microbatches: int,
    chunks_per_rank: int = 1,
    *,
    forward: Times = 1.0,
    input_grad: Times = 1.0,
    weight_grad: Times = 1.0,
    transfer: float = 0.0,
    engine: str = "compiled",
) -> ScheduleFigures:
    """Return the figures of a schedule.

    Args:
        forward, input_grad, weight_grad: time of one microbatch on a rank's whole share; one number, or one per rank.
        transfer: latency of a message between ranks.

    Raises:
        UnknownNameError: no such schedule.
        PlanError: the schedule has no order for this shape, or a time cannot be.

    >>> schedule_figures("1f1b", 4, 8).bubble_fraction == 3 / 11
    True
    """
    schedule = SCHEDULES.get(name)
    shape = Shape(ranks, microbatches, chunks_per_rank)
    check_times({"forward": forward, "input_grad": input_grad, "weight_grad": weight_grad, "transfer": transfer})
    if not any(np.any(np.asarray(time)) for time in (forward, input_grad, weight_grad)):
        raise PlanError(
            "a schedule shows who waits for whom, but no action of it takes time: forward, input_grad and weight_grad are 0. "
            "Way out: one of them above 0"
        )
    check_actions(ranks, microbatches, chunks_per_rank)
    steps = _steps(schedule, shape)
    placement, order, pattern = ordered(schedule, shape, steps)

    def lowered(freed_at_input_grad: bool) -> tuple[Program, Prices]:
        return abstract_program(
            placement,
            order,
            pattern,
            forward=forward,
            input_grad=input_grad,
            weight_grad=weight_grad,
            transfer=transfer,
            freed_at_input_grad=freed_at_input_grad,
        )

    program, prices = lowered(False)
    trace = run(program, prices, engine)
    early = lowered(True)[0] if schedule.splits_backward else program
    compute = program.kind == COMPUTE
    rank, start, end = program.rank[compute], trace.start[compute], trace.end[compute]
    busy = np.bincount(rank, weights=prices.occupancy[program.item[compute]], minlength=ranks) / steps
    makespan, span = _spans(schedule, shape, trace.makespan, rank, program.action[compute], start, end)
    total = float(busy.sum())
    idle = ranks * makespan - total
    return ScheduleFigures(
        schedule=schedule.name,
        shape=shape,
        makespan=makespan,
        bubble_fraction=idle / (ranks * makespan) if makespan else 0.0,
        bubble_overhead=idle / total if total else 0.0,
        peak_activations=memory_peaks(program, trace).total,
        peak_activations_if_freed_at_input_grad=memory_peaks(early, trace).total,
        longest_rank_span=float(span.max()),
        longest_idle_in_span=float((span - busy).max()),
        busy=busy,
        span=span,
        messages=_volume(program) / steps,
        weight_copies=placement.weight_copies() * schedule.weight_versions(shape),
        order=order,
        program=program,
        prices=prices,
        trace=trace,
    )


def makespan_and_bubble(
    name: str, shape: Shape, forward: Times, input_grad: Times, weight_grad: Times, transfer: float = 0.0
) -> tuple[float, float]:
    """Return the makespan and the bubble fraction of `schedule_figures` alone, without a program: for many times of one order.

    Raises:
        UnknownNameError, PlanError: as `schedule_figures`.

    >>> makespan_and_bubble("1f1b", Shape(4, 8), 1.0, 1.0, 1.0)[1] == 3 / 11
    True
    """
    schedule = SCHEDULES.get(name)
    steps = _steps(schedule, shape)
    placement, order, _ = ordered(schedule, shape, steps)
    times = time_order(
        order, placement, forward=forward, input_grad=input_grad, weight_grad=weight_grad, transfer=transfer
    )
    makespan = times.makespan
    if not schedule.flush:
        makespan, _ = _spans(schedule, shape, makespan, order.rank, order.kind, times.start, times.end)
    whole = shape.ranks * makespan
    return makespan, (whole - float((times.busy / steps).sum())) / whole if whole else 0.0


def _steps(schedule: Schedule, shape: Shape) -> int:
    """One, or so many that the steady state of a schedule without a flush shows."""
    return 1 if schedule.flush else math.ceil(8 * shape.ranks / shape.microbatches) + 2


def _spans(
    schedule: Schedule,
    shape: Shape,
    makespan: float,
    rank: NDArray[np.int32],
    action: NDArray[np.int8],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64]]:
    """Makespan, and per rank the time from its first start to its last end.

    Without a flush both are those of one step in the steady state: m times the period between rank 0's backwards, averaged over
    whole rounds of p microbatches far from both ends.
    """
    ranks = shape.ranks
    if schedule.flush:
        first, last = np.full(ranks, np.inf), np.zeros(ranks)
        np.minimum.at(first, rank, start)
        np.maximum.at(last, rank, end)
        return makespan, last - first
    ends = end[(rank == 0) & (action == 1)]
    rounds, begin = max(1, len(ends) // (4 * ranks)), len(ends) // 3
    period = float(ends[begin + rounds * ranks] - ends[begin]) / (rounds * ranks)
    return shape.microbatches * period, np.full(ranks, shape.microbatches * period)


def _volume(program: Program) -> float:
    """Sum of the messages of all transfers."""
    return float(program.messages[program.kind == TRANSFER].sum())
