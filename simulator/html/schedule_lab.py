"""A pipeline schedule alone, in abstract time, for a page on which its actions can be dragged: order in, timeline out."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simulator.errors import PlanError
from simulator.html.controls import RequestError, request_of
from simulator.html.packing import gaps, lane_starts, numbers, pack, ticks
from simulator.report.bars import KINDS
from simulator.schedules import SCHEDULES, Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_times import time_order
from simulator.schedules.placement import Placement
from simulator.schedules.torch_csv import read_order_file_text
from simulator.specs import Listed, Spec

__all__ = ["schedule_alone"]

_MOST_ACTIONS = 20_000
_KINDS = ("forward", "backward", "backward", "weight gradient")
Time = Annotated[float, Field(ge=0, le=1000)]
Cells = Annotated[tuple[Annotated[str, Field(max_length=60)], ...], Listed, Field(max_length=_MOST_ACTIONS)]


class Question(Spec):
    """A schedule by name and shape, or an order of the user's own: the cells of each rank.

    Args:
        forward, input_grad, weight_grad: of a microbatch on a rank's share.
        transfer: from the end of an action to when another rank knows of it.
    """

    schedule: Annotated[str, Field(max_length=100)] = "one_f_one_b"
    ranks: Annotated[int, Field(ge=1, le=10**6)] = 4
    microbatches: Annotated[int, Field(ge=1, le=10**7)] = 8
    chunks_per_rank: Annotated[int, Field(ge=1, le=10**4)] = 1
    forward: Time = 1.0
    input_grad: Time = 1.0
    weight_grad: Time = 1.0
    transfer: Time = 0.0
    orders: Annotated[tuple[Cells, ...], Listed, Field(max_length=512)] = ()


def schedule_alone(body: object) -> dict[str, object]:
    """Return the timeline of a schedule, its bubble and its peaks of activations.

    Raises:
        RequestError: the request is none, or too large for a page.
        SimulatorError: the schedule has no such shape, or the order cannot run; the message says who waits for whom.
    """
    asked = request_of(body, Question)
    order, placement = _order(asked)
    times = time_order(
        order,
        placement,
        forward=asked.forward,
        input_grad=asked.input_grad,
        weight_grad=asked.weight_grad,
        transfer=asked.transfer,
    )
    return {
        "makespan": times.makespan,
        "bubble": times.bubble_fraction,
        "busy": times.busy.tolist(),
        "peaks": times.peak_activations.tolist(),
        "ranks": order.ranks,
        "microbatches": placement.microbatches,
        "orders": [line.split(",") for line in order.to_text().strip().split("\n")],
        "timeline": _timeline(order, placement, times.start, times.end, times.makespan),
    }


def _order(asked: Question) -> tuple[PipelineOrder, Placement]:
    if asked.orders:
        if sum(map(len, asked.orders)) > _MOST_ACTIONS:
            raise RequestError(f"a page shows orders of up to {_MOST_ACTIONS:,} actions")
        order, placement, _ = read_order_file_text("\n".join(",".join(cells) for cells in asked.orders))
        return order, placement
    if "." in asked.schedule or "/" in asked.schedule:
        raise RequestError("a page takes the name of a schedule, not the path of a file")
    schedule = SCHEDULES.get(asked.schedule)
    actions = 2 * asked.ranks * asked.microbatches * asked.chunks_per_rank
    if actions > _MOST_ACTIONS:
        raise RequestError(
            f"a page shows schedules of up to {_MOST_ACTIONS:,} actions, not {actions:,}; dtsim schedule takes more"
        )
    if not schedule.flush:
        raise PlanError(
            f"{schedule.name} has no flush, so no step of it stands alone. Way out: a schedule with a flush"
        )
    shape = Shape(asked.ranks, asked.microbatches, asked.chunks_per_rank)
    schedule.check(shape)
    placement = schedule.placement(shape)
    return schedule.order(shape, placement), placement


def _timeline(
    order: PipelineOrder, placement: Placement, start: NDArray[np.float64], end: NDArray[np.float64], makespan: float
) -> dict[str, object]:
    """As `step_data.timeline_data`, with one more column: which cell of its rank a bar is."""
    rank = np.repeat(np.arange(order.ranks), np.diff(order.rank_offsets))
    whole = order.pair < 0
    forward = order.kind == 0
    lane = np.where(whole, 0, np.where(forward, 1, 2))
    first = np.where(whole | forward, 1, 0)
    cell = np.cumsum(first) - 1
    cell -= cell[order.rank_offsets[:-1]][rank]
    turn = np.lexsort((start, lane, rank))
    rank, lane = rank[turn], lane[turn]
    kinds = np.array([KINDS.index(_KINDS[k]) for k in range(4)])[order.kind[turn]]
    begin, until = ticks(start[turn], makespan), ticks(end[turn], makespan)
    changes = lane_starts(rank, lane)
    number = order.microbatch[turn]
    columns: dict[str, NDArray[Any]] = {
        "gap": gaps(begin, changes),
        "length": (until - begin).astype(np.uint32),
        "kind": kinds.astype(np.uint8),
        "item": np.zeros(len(turn), np.uint32),
        "action": order.kind[turn].astype(np.uint8),
        "chunk": numbers(order.chunk[turn]),
        "microbatch": numbers(number),
        "cell": cell[turn].astype(np.uint32),
    }
    if placement.lanes > 1:
        columns["way"] = (placement.lane_of[number] % 2).astype(np.uint8)
    return {
        "makespan": makespan,
        "unit": True,
        "kinds": list(KINDS),
        "ranks": [{"rank": r, "name": f"rank {r}"} for r in range(order.ranks)],
        "all_ranks": order.ranks,
        "lanes": [[int(rank[c]), int(lane[c]), int(c)] for c in changes],
        "bars": len(turn),
        "packed": pack(columns, 1),
        "items": [],
        "effects": [],
        "labels": None,
    }
