"""TeraPipe: GPipe on slices of the sequence; a planner cuts them unequal, so that each takes about the same time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from simulator.errors import PlanError
from simulator.schedules.order import Action, B, F, PipelineOrder
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape
from simulator.schedules.sliced import Sliced

__all__ = ["TeraPipe", "plan_slices"]


class TeraPipe(Sliced):
    """All slices of all microbatches forward, then all backward in reverse."""

    name = "terapipe"
    source = "Li et al., TeraPipe, ICML 2021, arXiv:2102.07988"
    instead = "gpipe"

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Action]]:
        """Return F of every microbatch and slice, then B of all in reverse, for every rank."""
        self.check(shape)
        v = shape.chunks_per_rank
        every = [(i, part) for i in range(shape.microbatches) for part in range(v)]

        def of_rank(rank: int) -> Iterator[Action]:
            yield from (F(rank, i, part=part, parts=v) for i, part in every)
            yield from (B(rank, i, part=part, parts=v) for i, part in reversed(every))

        return [of_rank(rank) for rank in range(shape.ranks)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> TeraPipe().order(Shape(1, 1, 2), Placement.linear(Shape(1, 1))).to_text()
        '0F0.1/2,0F0.2/2,0B0.2/2,0B0.1/2\\n'
        """
        self.check(shape)
        v = shape.chunks_per_rank
        size = shape.microbatches * v
        number = np.arange(size, dtype=np.int32)
        microbatch, part = np.divmod(np.concatenate([number, number[::-1]]), v)
        rank = np.arange(shape.ranks, dtype=np.int32)[:, None]
        return PipelineOrder.from_grid(np.repeat([0, 1], size), rank, microbatch, part=part, parts=v)


def plan_slices(
    length: int, ranks: int, seconds: Callable[[int, int], float], step: int = 1
) -> tuple[tuple[int, ...], float]:
    """Return the slice lengths with the least sum t_k + (p-1) max t_k: the time of one direction of one microbatch.

    For each bound on the longest slice, the least sum under it is found from front to back (dynamic programming).

    Args:
        length: tokens of the sequence.
        ranks: pipeline ranks p.
        seconds: time of a slice on one rank, from (tokens of the slice, tokens before it) [s].
        step: slices are multiples of this many tokens.

    Returns:
        Tokens of each slice, first to last, and the time [s].

    Raises:
        PlanError: `length` is no multiple of `step`, or a number is below 1.

    >>> plan_slices(4, 3, lambda tokens, before: tokens)
    ((1, 1, 1, 1), 6.0)
    >>> plan_slices(4, 1, lambda tokens, before: tokens + 1)
    ((4,), 5.0)
    """
    if min(length, ranks, step) < 1 or length % step:
        raise PlanError(
            f"a sequence is cut into slices of whole steps: got length {length}, step {step}, ranks {ranks}; "
            f"use numbers >= 1 and a step that divides the length"
        )
    n = length // step
    times = np.full((n + 1, n + 1), np.inf)
    for start in range(n):
        for end in range(start + 1, n + 1):
            times[start, end] = seconds((end - start) * step, start * step)
    best: tuple[tuple[int, ...], float] = ((length,), float("inf"))
    for longest in np.unique(times[np.isfinite(times)]):
        if (ranks - 1) * longest >= best[1]:
            break
        cuts, total, actual = _least_sum(np.where(times <= longest, times, np.inf))
        if total + (ranks - 1) * actual < best[1]:
            best = tuple(int(cut) * step for cut in np.diff(cuts)), float(total + (ranks - 1) * actual)
    return best


def _least_sum(times: np.ndarray) -> tuple[list[int], float, float]:
    """Return cuts of 0..n with the least sum of times, that sum, and the longest time among them."""
    n = len(times) - 1
    total, before = np.full(n + 1, np.inf), np.zeros(n + 1, np.int64)
    total[0] = 0.0
    for end in range(1, n + 1):
        sums = total[:end] + times[:end, end]
        before[end] = int(np.argmin(sums))
        total[end] = sums[before[end]]
    if not np.isfinite(total[n]):
        return [0, n], float("inf"), 0.0
    cuts = [n]
    while cuts[-1]:
        cuts.append(int(before[cuts[-1]]))
    cuts.reverse()
    return cuts, float(total[n]), max(float(times[a, b]) for a, b in itertools.pairwise(cuts))
