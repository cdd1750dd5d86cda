"""When every action of an order runs, and what that leaves idle and keeps in memory, from the order and times alone.

The meaning is that of the abstract program of the order (a schedule alone, in abstract time): an action starts when all before
it on its rank have ended and the same atoms of its microbatch have passed the neighbour chunk and, where that lies on another
rank, `transfer` has gone by; a fused pair starts when both its halves can and takes the sum.  A message holds nothing.
Nothing is built for it, no program and no list of waits, so it serves where one order is timed again and again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.errors import DeadlockError, PlanError, ProgramError
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_waits import check_order_runs
from simulator.schedules.placement import Placement

__all__ = ["OrderTimes", "time_order"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderTimes:
    """The timeline of an order.

    Args:
        start, end: [actions] seconds from the start of the step; both halves of a fused pair have the same.
        busy: [ranks] seconds in which a rank runs actions.
        first_start, last_end: [ranks] seconds; inf and 0 of a rank without actions.
        peak_activations: [ranks] microbatches on the rank's share of one lane that stand at once, given back after W (or B).
        peak_activations_if_freed_at_input_grad: [ranks] the same, given back after I.
    """

    start: Floats
    end: Floats
    busy: Floats
    first_start: Floats
    last_end: Floats
    peak_activations: Floats
    peak_activations_if_freed_at_input_grad: Floats

    @property
    def makespan(self) -> float:
        """End of the last action [s]."""
        return float(self.last_end.max())

    @property
    def bubble_fraction(self) -> float:
        """1 - busy / (ranks x makespan); 0 where nothing takes time."""
        whole = len(self.busy) * self.makespan
        return 1.0 - float(self.busy.sum()) / whole if whole else 0.0


def time_order(
    order: PipelineOrder,
    placement: Placement,
    *,
    forward: ArrayLike = 1.0,
    input_grad: ArrayLike = 1.0,
    weight_grad: ArrayLike = 1.0,
    transfer: float = 0.0,
) -> OrderTimes:
    """Return when every action of an order runs; the order has passed `check_order`.

    Args:
        forward, input_grad, weight_grad: [s] one microbatch on one rank's whole share of one lane; one number, or one per rank.
        transfer: [s] from the end of an action to when its message is known on another rank.

    Raises:
        PlanError: a time is negative or not finite.
        ProgramError: times of another number of ranks, or an order that the placement does not fit.
        DeadlockError: ranks wait for each other; the message names each action of the ring and what it waits for.

    >>> from simulator.schedules import SCHEDULES, Shape
    >>> schedule, shape = SCHEDULES.get("1f1b"), Shape(4, 8)
    >>> placement = schedule.placement(shape)
    >>> times = time_order(schedule.order(shape, placement), placement)
    >>> times.makespan, times.peak_activations.tolist()
    (33.0, [4.0, 3.0, 2.0, 1.0])
    """
    from simulator.schedules.kernels.clock import run_order

    seconds = _seconds(order.ranks, forward, input_grad, weight_grad)
    if not 0 <= transfer < np.inf:
        raise PlanError(f"the transfer time of a schedule must be a finite number >= 0, but it is {transfer}")
    _fits(order, placement)
    share = placement.ranks / placement.chunks
    grain = int(np.lcm.reduce(np.flatnonzero(np.bincount(order.parts))))
    alone = grain == 1 and int(order.count.max()) == 1
    fused, weighted = int(order.pair.max()) >= 0, bool((order.weight != 1.0).any())
    start, end, figures = np.empty(order.size), np.empty(order.size), np.empty((5, order.ranks))
    done = run_order(
        order.rank_offsets, order.kind, order.chunk, order.microbatch, order.count, order.part, order.parts, order.weight,
        order.pair, grain, placement.microbatches * grain, alone, fused, weighted, placement.lane_of,
        _delay(placement, transfer), seconds, share, start, end, figures,
    )  # fmt: skip
    if done < order.size:
        check_order_runs(order)
        raise DeadlockError(f"{order.size - done} of {order.size} actions never run; check the order first")
    for array in (start, end, figures):
        array.flags.writeable = False
    return OrderTimes(
        start=start,
        end=end,
        busy=figures[0],
        first_start=figures[1],
        last_end=figures[2],
        peak_activations=figures[3] * share,
        peak_activations_if_freed_at_input_grad=figures[4] * share,
    )


def _seconds(ranks: int, forward: ArrayLike, input_grad: ArrayLike, weight_grad: ArrayLike) -> Floats:
    """[kinds, ranks] seconds of F, B, I and W."""
    times = []
    for name, given in (("forward", forward), ("input_grad", input_grad), ("weight_grad", weight_grad)):
        values = np.asarray(given, np.float64)
        if values.shape not in ((), (ranks,)):
            raise ProgramError(
                f"the {name} time of a schedule is one number or one per rank, but it has shape {values.shape} for "
                f"{ranks} ranks"
            )
        if not (np.isfinite(values) & (values >= 0)).all():
            raise PlanError(f"the {name} time of a schedule must be a finite number >= 0, but it is {values.tolist()}")
        times.append(np.broadcast_to(values, ranks))
    return np.stack([times[0], times[1] + times[2], times[1], times[2]])


def _fits(order: PipelineOrder, placement: Placement) -> None:
    """Check what the compiled loop needs so as never to read beyond an array."""
    if not order.size:
        raise ProgramError("an order has at least one action; this one is empty")
    limits = (
        ("kind", order.kind, 4),
        ("chunk", order.chunk, placement.chunks),
        ("microbatch", order.microbatch, placement.microbatches),
    )
    for name, column, size in limits:
        if column.min() < 0 or column.max() >= size:
            raise ProgramError(
                f"{name} lies in 0..{size - 1}, but the order has {int(column.min())}..{int(column.max())}; "
                "make order and placement from one shape"
            )
    if order.ranks != placement.ranks:
        raise ProgramError(
            f"the order has {order.ranks} ranks, the placement {placement.ranks}; make both from one shape"
        )
    if int((order.microbatch + order.count).max()) > placement.microbatches:
        raise ProgramError(f"a group of microbatches ends at microbatch {placement.microbatches - 1} at the latest")
    if order.count.min() < 1 or order.part.min() < 0 or (order.part >= order.parts).any():
        raise ProgramError("a part k of n has k in 0..n-1, and an action covers one microbatch or more")


def _delay(placement: Placement, transfer: float) -> Floats:
    """[2, lanes, chunks] seconds from the end of a chunk's forward (0) or backward (1) to the chunk that waits for it."""
    delay = np.zeros((2, *placement.rank_of.shape))
    crosses = placement.rank_of[:, 1:] != placement.rank_of[:, :-1]
    delay[0, :, :-1] = crosses * transfer
    delay[1, :, 1:] = crosses * transfer
    return delay
