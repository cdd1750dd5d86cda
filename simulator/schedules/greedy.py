"""Orders that ranks find for themselves: a free rank takes the ready backward or forward that comes first in a rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.schedules.action import Action
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["greedy_order", "greedy_plainly"]


def greedy_plainly(
    placement: Placement, ticks: tuple[int, int], precedence: Callable[[str, int, int], tuple[int, ...]]
) -> list[list[Action]]:
    """Return what each rank takes, tick by tick: backwards before forwards, then by `precedence`, the least first.

    Args:
        placement: where chunks live, and the lane of each microbatch; messages take no time.
        ticks: time of F and of B.
        precedence: from kind, chunk and microbatch.
    """
    last = placement.chunks - 1
    homes, lane_of = placement.rank_of.tolist(), placement.lane_of.tolist()
    lanes = [[i for i, lane in enumerate(lane_of) if lane == number] for number in range(placement.lanes)]
    ended: dict[tuple[str, int, int], int] = {}
    taken: list[list[Action]] = [[] for _ in range(placement.ranks)]
    free = [0] * placement.ranks
    todo: list[dict[tuple[str, int, int], int]] = [{} for _ in taken]
    for number, row in enumerate(homes):
        for c, rank in enumerate(row):
            todo[rank] |= {("F", c, number): 0, ("B", c, number): 0}

    def ready(kind: str, c: int, i: int, now: int) -> bool:
        inputs = [("F", c, i)] if kind == "B" else []
        source = c - 1 if kind == "F" else c + 1
        inputs += [(kind, source, i)] if 0 <= source <= last else []
        return all(ended.get(key, now + 1) <= now for key in inputs)

    now, left = 0, 2 * (last + 1) * len(lane_of)
    while left:
        for rank, queue in enumerate(todo):
            if free[rank] > now:
                continue
            heads = [(kind, c, lanes[lane][n], lane) for (kind, c, lane), n in queue.items() if n < len(lanes[lane])]
            best = [head for head in heads if ready(*head[:3], now)]
            if best:
                kind, c, i, lane = min(best, key=lambda head: (head[0], *precedence(*head[:3])))
                taken[rank].append(Action(kind, c, i))  # type: ignore[arg-type]
                queue[kind, c, lane] += 1
                free[rank] = ended[kind, c, i] = now + ticks[kind == "B"]
                left -= 1
        now += 1
    return taken


def greedy_order(placement: Placement, ticks: tuple[int, int], unit: int = 0) -> PipelineOrder:
    """Return the order of `greedy_plainly` from compiled code.

    Args:
        placement: lanes of equally many microbatches, in turns of one unit each.
        ticks: time of F and of B.
        unit: microbatches of one lane that go before those of the next unit, forwards of deeper chunks and backwards of
            earlier ones first; 0 means lowest microbatch first, then lowest chunk.
    """
    from simulator.schedules.kernels.greedy import greedy_lines

    chunks, lanes = placement.chunks, placement.lanes
    held = np.argsort(placement.rank_of.ravel(), kind="stable").reshape(placement.ranks, -1)
    each = placement.microbatches // lanes
    kind, line, number = greedy_lines(held.astype(np.int64), chunks, each, unit, np.array(ticks))
    lane, chunk = np.divmod(line, np.int32(chunks))
    numbered = np.argsort(placement.lane_of, kind="stable").astype(np.int32).reshape(lanes, each)
    return PipelineOrder.from_grid(kind, chunk, numbered[lane, number])
