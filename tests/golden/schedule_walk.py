"""What a step of a schedule costs, by a plain walk along the orders of the ranks.

Knows nothing of the simulator's engines and passes: it only reads orders and placements.  Times are those of one
microbatch on one rank's whole share of one lane; messages between ranks have a latency and hold nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.schedules import Action, PipelineOrder, Placement, Schedule, Shape


@dataclass
class Ran:
    """One action as it ran."""

    rank: int
    action: Action
    start: float
    end: float


class Walk:
    """Every rank runs its order as early as it can; a fused pair waits for both inputs and ends at once."""

    def __init__(self, order: PipelineOrder, placement: Placement, times: dict[str, float], latency: float) -> None:
        self.order, self.placement, self.latency = order, placement, latency
        self.chunks, lane_of = placement.chunks, placement.lane_of.tolist()
        self.homes = [placement.rank_of[lane].tolist() for lane in lane_of]
        """Of each microbatch: the rank of each chunk."""
        share = placement.ranks / placement.chunks
        self.times = {kind: times[kind] * share for kind in times} | {"B": (times["I"] + times["W"]) * share}
        self.ended: dict[tuple[str, int, int], dict[int, tuple[float, int]]] = {}
        self.volume = 0.0
        self.timeline: list[list[Ran]] = [[] for _ in range(order.ranks)]
        self._run()

    def _inputs(self, action: Action):
        """Yield (kinds, chunk) that an action waits for."""
        if action.kind == "W":
            yield "I", action.chunk
            return
        if action.kind != "F":
            yield "F", action.chunk
        source = action.chunk + (-1 if action.kind == "F" else 1)
        if 0 <= source < self.chunks:
            yield ("F" if action.kind == "F" else "BI"), source

    def _ready(self, rank: int, action: Action) -> float | None:
        """Return when all inputs of an action are there, or None."""
        latest = 0.0
        for kinds, chunk in self._inputs(action):
            for i in range(action.microbatch, action.microbatch + action.count):
                done = next((d for kind in kinds if (d := self.ended.get((kind, chunk, i)))), {})
                pieces = next(iter(done.values()))[1] if done else 1
                first = action.part * pieces // action.parts
                for k in range(first, math.ceil((action.part + 1) * pieces / action.parts)):
                    if k not in done:
                        return None
                    latest = max(latest, done[k][0] + (self.latency if self.homes[i][chunk] != rank else 0.0))
        return latest

    def _run(self) -> None:
        waiting = [self.order.cells(rank)[::-1] for rank in range(self.order.ranks)]
        moved = True
        while moved:
            moved = False
            for rank, cells in enumerate(waiting):
                while cells:
                    actions = cells[-1] if isinstance(cells[-1], tuple) else (cells[-1],)
                    ready = [self._ready(rank, a) for a in actions]
                    if None in ready:
                        break
                    mine = self.timeline[rank]
                    start = max([mine[-1].end if mine else 0.0, *ready])
                    end = start + sum(a.share * self.times[a.kind] for a in actions)
                    for a in actions:
                        mine.append(Ran(rank, a, start, end))
                        for i in range(a.microbatch, a.microbatch + a.count):
                            self.ended.setdefault((a.kind, a.chunk, i), {})[a.part] = (end, a.parts)
                        self._post(rank, a)
                    cells.pop()
                    moved = True
        if any(waiting):
            raise AssertionError(f"stopped before {[str(left[-1]) for left in waiting if left]}")

    def _post(self, rank: int, action: Action) -> None:
        to = action.chunk + {"F": 1, "B": -1, "I": -1, "W": 0}[action.kind]
        if to != action.chunk and 0 <= to < self.chunks and self.homes[action.microbatch][to] != rank:
            self.volume += action.count / action.parts

    @property
    def makespan(self) -> float:
        """End of the last action."""
        return max(mine[-1].end for mine in self.timeline)

    def busy(self, rank: int) -> float:
        """Time that a rank works."""
        return sum(ran.action.share * self.times[ran.action.kind] for ran in self.timeline[rank])

    def span(self, rank: int) -> float:
        """Time from the first start to the last end of a rank."""
        return self.timeline[rank][-1].end - self.timeline[rank][0].start

    def peak(self, rank: int, freed_at: str) -> float:
        """Most activations held, from the start of F to the end of B or `freed_at` (I or W); unit: one share."""
        held = most = 0.0
        for ran in self.timeline[rank]:
            a = ran.action
            if a.kind == "F":
                held += a.count / a.parts
                most = max(most, held)
            elif a.kind in ("B", freed_at):
                held -= a.count / a.parts
        return most * self.placement.ranks / self.placement.chunks


def figures(schedule: Schedule, shape: Shape, times: dict[str, float], latency: float) -> dict[str, list[float]]:
    """Return the figures of a step; of an asynchronous schedule those of a step in its steady state."""
    p, m = shape.ranks, shape.microbatches
    steps = 1 if schedule.flush else 8 * math.ceil(p / m) + 2
    placement = schedule.placement(shape).repeated(steps)
    order = schedule.order(shape, placement) if schedule.flush else schedule.steady_order(shape, steps)
    walk = Walk(order, placement, times, latency)
    busy = [walk.busy(rank) / steps for rank in range(p)]
    makespan, spans = walk.makespan, [walk.span(rank) for rank in range(p)]
    if not schedule.flush:
        ends = [ran.end for ran in walk.timeline[0] if ran.action.kind == "B"]
        rounds = max(1, len(ends) // (4 * p))
        first = len(ends) // 3
        makespan = m * (ends[first + rounds * p] - ends[first]) / (rounds * p)
        spans = [makespan] * p
    return {
        "makespan": [makespan],
        "bubble_ratio": [1 - sum(busy) / (p * makespan)],
        "peak_activations_per_device": [walk.peak(rank, "W") for rank in range(p)],
        "peak_activations_if_freed_at_input_grad": [walk.peak(rank, "I") for rank in range(p)],
        "max_device_span": [max(spans)],
        "max_idle_within_device_span": [max(spans[rank] - busy[rank] for rank in range(p))],
        "p2p_volume_total": [walk.volume / steps],
        "weight_copies_per_device": (
            schedule.placement(shape).weight_copies() * schedule.weight_versions(shape)
        ).tolist(),
    }
