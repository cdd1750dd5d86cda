"""An order found for given times and a memory limit: list schedules of many policies, then a search around the best.

A microbatch's backward is split into input gradient (I) and weight gradient (W), as in the zero-bubble schedules: W waits
for gaps.  Activations are held from the start of F to the end of W.  What is found is an order like any other: it can be
checked, run by both engines, written to a file and read back.  `lower_bound` says how far from the optimum it can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine import run
from simulator.errors import PlanError
from simulator.lowering.abstract import abstract_program, items_by_rank
from simulator.lowering.steps.pattern import Pattern
from simulator.program.prices import Prices
from simulator.program.program import COMPUTE, Program
from simulator.program.trace import Trace
from simulator.report.frames import Records, Tabular
from simulator.report.memory import memory_peaks
from simulator.report.schema import SCHEMA_VERSION
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_times import time_order
from simulator.schedules.placement import Placement
from simulator.studies.schedule_figures import Times, action_records, check_times

__all__ = ["AutomaticSchedule", "automatic_schedule", "lower_bound"]

_SEARCH_ACTIONS = 6_000_000
"""Actions that the search may place; more rounds for small shapes, none for large ones."""
_TRIAL_MICROBATCHES = 3
"""Policies are compared on so many microbatches per rank; the best of them then run on all."""
_FINALISTS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AutomaticSchedule(Tabular):
    """An order that was found, and its figures by the engine.

    Args:
        makespan: end of the last action.
        lower_bound: no order with these times and this memory ends sooner (not always reachable).
        bubble_fraction: 1 - busy / (ranks x makespan).
        bubble_overhead: idle / busy.
        peak_activations: per rank, unit = one microbatch on one rank's share.
        policy: what the winning list schedule was called, and whether the search bettered it.
    """

    shape: Shape
    memory_limit: float
    makespan: float
    lower_bound: float
    bubble_fraction: float
    bubble_overhead: float
    peak_activations: NDArray[np.float64]
    policy: str
    placement: Placement
    order: PipelineOrder
    program: Program
    trace: Trace

    @property
    def gap(self) -> float:
        """Makespan over the lower bound, minus 1: the optimum is at most so much better."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound else 0.0

    def tables(self) -> dict[str, Records]:
        """`schedule`: one row; `actions`: a row per action, in order of time."""
        return {"schedule": lambda: [self.record()], "actions": lambda: action_records(self.program, self.trace)}

    def record(self) -> dict[str, Any]:
        """Return the row of the table `schedule`."""
        return {
            "schedule": "auto",
            "ranks": self.shape.ranks,
            "microbatches": self.shape.microbatches,
            "chunks_per_rank": self.shape.chunks_per_rank,
            "makespan": self.makespan,
            "lower_bound": self.lower_bound,
            "bubble_fraction": self.bubble_fraction,
            "bubble_overhead": self.bubble_overhead,
            "peak_activations": float(self.peak_activations.max()),
            "weight_copies": int(self.placement.weight_copies().max()),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim schedule auto`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "schedule": "auto",
            "policy": self.policy,
            "memory_limit": self.memory_limit,
            "makespan": self.makespan,
            "lower_bound": self.lower_bound,
            "bubble_fraction": self.bubble_fraction,
            "bubble_overhead": self.bubble_overhead,
            "peak_activations": self.peak_activations.tolist(),
            "weight_copies": self.placement.weight_copies().tolist(),
            "orders": [line.split(",") for line in self.order.to_text().strip().split("\n")],
        }


@dataclass(frozen=True, slots=True)
class _Problem:
    """Times of one chunk's actions [3, ranks], the limit in chunks, and which chunks a rank holds [ranks, turns]."""

    shape: Shape
    placement: Placement
    times: NDArray[np.float64]
    transfer: float
    limit: int
    held: NDArray[np.int64]

    def listed(
        self, policy: NDArray[np.int64], twists: NDArray[np.int8], microbatches: int
    ) -> tuple[float, tuple[NDArray[Any], ...]]:
        """Return the makespan of a policy on so many microbatches, and kind, chunk and microbatch of its actions."""
        from simulator.studies.automatic_kernel import list_schedule

        ranks, turns = self.held.shape
        grid = (ranks, 3 * turns * microbatches)
        out = np.empty(grid, np.int8), np.empty(grid, np.int32), np.empty(grid, np.int32)
        room = np.empty((2, ranks * turns, microbatches))
        end = list_schedule(
            self.held, self.times, self.transfer, self.limit, microbatches, policy, twists.copy(), *out, room
        )
        return float(end), out


def automatic_schedule(
    shape: Shape,
    forward: Times = 1.0,
    input_grad: Times = 1.0,
    weight_grad: Times = 1.0,
    transfer: float = 0.0,
    memory_limit: float | None = None,
    engine: str = "compiled",
) -> AutomaticSchedule:
    """Return a good order for these times under a memory limit, with its figures.

    Args:
        shape: one chunk per rank lies in a line (0123), several in a zigzag (0123 3210).
        forward, input_grad, weight_grad: time of one microbatch on a rank's whole share; one number, or one per rank.
        transfer: latency of a message between ranks.
        memory_limit: activations that a rank may hold, unit = one microbatch on one rank's share; None = no limit.
        engine: which engine times the order.

    Raises:
        PlanError: a time is negative or not finite, there is not one per rank, or the limit is below 1.

    >>> found = automatic_schedule(Shape(4, 8), memory_limit=7)
    >>> found.makespan, found.lower_bound, found.peak_activations.max() <= 7
    (27.0, 27.0, np.True_)
    """
    problem = _problem(shape, forward, input_grad, weight_grad, transfer, memory_limit)
    bound = lower_bound(shape, forward, input_grad, weight_grad, transfer, memory_limit)
    order, policy = _solve(problem, bound)
    program, prices = _priced(problem, order)
    trace = run(program, prices, engine)
    busy = float(problem.times.sum()) * shape.chunks_per_rank * shape.microbatches
    idle = shape.ranks * trace.makespan - busy
    return AutomaticSchedule(
        shape=shape,
        memory_limit=float(shape.microbatches if memory_limit is None else memory_limit),
        makespan=trace.makespan,
        lower_bound=bound,
        bubble_fraction=idle / (shape.ranks * trace.makespan) if trace.makespan else 0.0,
        bubble_overhead=idle / busy if busy else 0.0,
        peak_activations=memory_peaks(program, trace).total,
        policy=policy,
        placement=problem.placement,
        order=order,
        program=program,
        trace=trace,
    )


def lower_bound(
    shape: Shape,
    forward: Times = 1.0,
    input_grad: Times = 1.0,
    weight_grad: Times = 1.0,
    transfer: float = 0.0,
    memory_limit: float | None = None,
) -> float:
    """Return a makespan that no order beats.

    A rank idles until its first forward can begin; then, for one chunk per rank, until its first input gradient comes
    back, save for the forwards that fit in its memory; and after its last input gradient the others go on upstream,
    while it has at most `memory_limit` weight gradients left.  And a microbatch's activations are held at least until
    it came back, so that `memory_limit` of them are turned over in that time.  The largest over ranks.

    Raises:
        PlanError: as `automatic_schedule`.

    >>> lower_bound(Shape(4, 8), memory_limit=7), lower_bound(Shape(4, 8), memory_limit=4)
    (27.0, 27.0)
    """
    m, v = shape.microbatches, shape.chunks_per_rank
    f, i, w = _problem(shape, forward, input_grad, weight_grad, transfer, memory_limit).times * v
    head = np.concatenate([[0.0], np.cumsum(f / v + transfer)[:-1]])
    work = m * (f + i + w)
    if v > 1:
        return float((head + work).max())
    most = min(m, int(np.floor(m if memory_limit is None else memory_limit)))
    after = np.concatenate([np.cumsum((f + i + 2 * transfer)[::-1])[::-1][1:], [0.0]])
    away = np.maximum(0.0, after - (most - 1) * f)
    turnover = -(-m // most) * (f + after + i + w)
    up = np.concatenate([[0.0], np.cumsum(i + transfer)[:-1]])
    up[1:] += w[0]
    tail = np.maximum(0.0, up - most * w)
    return float((head + np.maximum(work + away + tail, turnover)).max())


def _problem(
    shape: Shape, forward: Times, input_grad: Times, weight_grad: Times, transfer: float, limit: float | None
) -> _Problem:
    p, v = shape.ranks, shape.chunks_per_rank
    times = np.empty((3, p))
    for row, (name, given) in enumerate(
        (("forward", forward), ("input_grad", input_grad), ("weight_grad", weight_grad))
    ):
        each = np.asarray(given, np.float64)
        if each.ndim > 1 or (each.ndim and len(each) != p):
            raise PlanError(f"{name}: one time for all ranks or one per rank, but {each.size} were given for {p} ranks")
        times[row] = each
    for name, each in zip(("forward", "input_grad", "weight_grad"), times, strict=True):
        check_times({name: each.max(), f"least {name}": each.min(), "transfer": transfer})
    most = float(shape.microbatches if limit is None else limit)
    if not 1 <= most < np.inf:
        raise PlanError(
            f"a rank holds at least one microbatch's activations, but the memory limit is {most:g}. Use 1 or more"
        )
    placement = Placement.linear(shape) if v == 1 else Placement.zigzag(shape)
    held = np.argsort(placement.rank_of[0], kind="stable").reshape(p, v).astype(np.int64)
    limit_chunks = int(np.floor(min(most, shape.microbatches) * v + 1e-9))
    return _Problem(shape, placement, times / v, float(transfer), limit_chunks, held)


def _solve(problem: _Problem, bound: float) -> tuple[PipelineOrder, str]:
    """Return the best order found, and what found it."""
    from simulator.studies.automatic_kernel import search

    shape = problem.shape
    trial = min(shape.microbatches, _TRIAL_MICROBATCHES * shape.ranks + 8)
    plain = np.zeros((shape.ranks, 3 * shape.chunks_per_rank * shape.microbatches), np.int8)
    policies = _policies(problem)
    ranked = sorted((problem.listed(policy, plain, trial)[0], name) for name, policy in policies.items())
    best = min((problem.listed(policies[name], plain, shape.microbatches)[0], name) for _, name in ranked[:_FINALISTS])
    makespan, name = best
    rounds = min(200_000, _SEARCH_ACTIONS // max(plain.size, 1) // 2) if makespan > bound * (1 + 1e-12) else 0
    policy, twists = policies[name].copy(), plain.copy()
    found = name
    for turn, (_, start) in enumerate(ranked[:2] if rounds >= 200 else []):
        mine, turned = policies[start].copy(), plain.copy()
        end = search(
            problem.held, problem.times, problem.transfer, problem.limit, shape.microbatches, mine, turned, bound,
            rounds, turn,
        )  # fmt: skip
        if end < makespan:
            makespan, policy, twists, found = end, mine, turned, f"{start}, then searched"
    _, (kinds, which, numbers) = problem.listed(policy, twists, shape.microbatches)
    order = PipelineOrder.from_grid(np.array([0, 2, 3], np.int8)[kinds], which, numbers)
    for name, known in _known_orders(problem) if makespan > bound * (1 + 1e-12) else ():
        times = problem.times * shape.chunks_per_rank
        end = time_order(
            known,
            problem.placement,
            forward=times[0],
            input_grad=times[1],
            weight_grad=times[2],
            transfer=problem.transfer,
        ).makespan
        if end < makespan * (1 - 1e-12):
            makespan, order, found = end, known, f"schedule {name}"
    return order, found


def _known_orders(problem: _Problem) -> Iterator[tuple[str, PipelineOrder]]:
    """Yield the zero-bubble schedules of the library that fit the shape, the placement and the memory."""
    for name in ("zb_h1", "zb_h2", "zbv", "v_half_reordered", "v_min_reordered"):
        schedule = SCHEDULES.get(name)
        try:
            schedule.check(problem.shape)
        except PlanError:
            continue
        placement = schedule.placement(problem.shape)
        if placement == problem.placement:
            order = schedule.order(problem.shape, placement)
            held = np.cumsum((order.kind == 0).astype(np.int64) - (order.kind == 3))
            if held.max() <= problem.limit and not (order.kind == 1).any():
                yield name, order


def _policies(problem: _Problem) -> dict[str, NDArray[np.int64]]:
    """Named policies: how many forwards ahead by rank, how many W are put off, what goes first, whether W must fit."""
    p, v = problem.held.shape
    depth = np.arange(p, 0, -1, dtype=np.float64)
    f, i, _ = problem.times.mean(axis=1)
    hop = (f + i + 2 * problem.transfer) / max(f + i, 1e-300)
    most = problem.limit
    out: dict[str, NDArray[np.int64]] = {}
    stretches = sorted({0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, float(hop), float(2 * hop)})
    caps = {f"{stretch:.3g} x depth": np.ceil(stretch * depth * v) for stretch in stretches}
    caps |= {f"{stretch:.3g} x depth - 1": np.ceil(stretch * depth * v) - 1 for stretch in (2.0, 2.0 * hop)}
    caps["memory"] = np.full(p, float(most))
    for name, cap in caps.items():
        bounded = np.clip(cap, 1, most)
        for debt in sorted({1, 2, p, most + 1}):
            for first in (0, 1):
                for fits in (0, 1):
                    text = f"ahead {name}, W put off {debt}, {'F' if first else 'I'} first" + (", W fits" * fits)
                    rows = [bounded, np.full(p, debt), np.full(p, first), np.full(p, fits)]
                    out[text] = np.array(rows, np.int64)
    return out


def _priced(problem: _Problem, order: PipelineOrder) -> tuple[Program, Prices]:
    """Return the program of an order, priced with the times of each rank: every rank gets its own items."""
    placement = problem.placement
    shared, _ = abstract_program(
        placement, order, Pattern(order, placement), forward=1.0, input_grad=1.0, weight_grad=1.0
    )
    program = items_by_rank(shared)
    compute = program.kind == COMPUTE
    occupancy, latency = np.zeros(len(program.items)), np.zeros(len(program.items))
    kind = np.array([0, 0, 1, 2])[program.action[compute]]
    occupancy[program.item[compute]] = problem.times[kind, program.rank[compute]]
    latency[program.item[~compute]] = problem.transfer
    return program, Prices.plain(occupancy, latency)
