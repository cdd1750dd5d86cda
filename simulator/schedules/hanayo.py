"""Hanayo: stages run down and up the ranks in waves, which divides the bubble without a second copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["Hanayo"]


class Hanayo(Schedule):
    """A free rank takes the ready action that is a backward, then lowest in microbatch, then lowest in stage.

    The order is decided with backwards twice as long as forwards and messages that take no time, and then kept.  The
    placement is the paper's; this rule of precedence is ours, since the paper's own order could not be read.
    """

    name = "hanayo"
    aliases = ("hanayo_greedy",)
    source = "Liu et al., Hanayo, SC 2023, arXiv:2308.15762 (waves; the greedy rule is this file's)"

    def check(self, shape: Shape) -> None:
        """Refuse an odd number of chunks per rank.

        Raises:
            PlanError: `shape.chunks_per_rank`, twice the waves, is odd.
        """
        v = shape.chunks_per_rank
        if v % 2:
            nearest = Shape(shape.ranks, shape.microbatches, v + 1)
            raise self.refuse("a rank holds two chunks per wave", shape, nearest)

    def placement(self, shape: Shape) -> Placement:
        """Return one lane, 0123 3210 for every wave."""
        self.check(shape)
        return Placement.zigzag(shape)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return what the ranks take, tick by tick; a forward lasts one tick and a backward two."""
        self.check(shape)
        m, homes = shape.microbatches, placement.rank_of[0].tolist()
        last = len(homes) - 1
        ended: dict[tuple[str, int, int], int] = {}
        taken: list[list[Action]] = [[] for _ in range(shape.ranks)]
        free = [0] * shape.ranks
        todo = {rank: {("FB"[k], c): 0 for k in (1, 0) for c in range(last + 1) if homes[c] == rank} for rank in homes}

        def ready(kind: str, c: int, i: int, now: int) -> bool:
            inputs = [("F", c, i)] if kind == "B" else []
            source = c - 1 if kind == "F" else c + 1
            inputs += [(kind, source, i)] if 0 <= source <= last else []
            return i < m and all(ended.get(key, now + 1) <= now for key in inputs)

        now = 0
        while any(i < m for queue in todo.values() for i in queue.values()):
            for rank, queue in todo.items():
                best = [(kind, i, c) for (kind, c), i in queue.items() if ready(kind, c, i, now)]
                if free[rank] > now or not best:
                    continue
                kind, i, c = min(best)
                taken[rank].append(Action(kind, c, i))  # type: ignore[arg-type]
                queue[kind, c] += 1
                free[rank] = ended[kind, c, i] = now + (1 if kind == "F" else 2)
            now += 1
        return [iter(actions) for actions in taken]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> Hanayo().order(Shape(1, 2, 2), Placement.zigzag(Shape(1, 2, 2))).to_text()
        '0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1\\n'
        """
        from simulator.schedules.kernels.greedy import greedy_order

        self.check(shape)
        held = np.argsort(placement.rank_of[0], kind="stable").reshape(shape.ranks, -1)
        return PipelineOrder.from_grid(*greedy_order(held.astype(np.int64), shape.microbatches, np.array([1, 2])))
