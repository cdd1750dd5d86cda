"""DualPipe: both directions at once, with the forward of one microbatch fused to the backward of another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count

import numpy as np

from simulator.schedules.action import Cell
from simulator.schedules.arrange import by_phrases
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import Action, PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["DualPipe", "dual_cells", "dual_phrases"]


class DualPipe(Schedule):
    """Phase 0 is the direction that enters at the nearer end, phase 1 the other; each has half of the microbatches.

    Lane 0 runs down the ranks with the first half of the microbatches, lane 1 up with the second half.
    """

    name = "dualpipe"
    source = "DeepSeek-V3 technical report, arXiv:2412.19437; order as in github.com/deepseek-ai/DualPipe, dualpipe.py"
    splits_backward = True
    replicas = 2

    def check(self, shape: Shape) -> None:
        """Refuse odd ranks, chunks, and microbatches that are odd or fewer than 2p.

        Raises:
            PlanError: p or m is odd, m < 2p, or v is not 1.
        """
        p = shape.ranks + shape.ranks % 2
        nearest = Shape(p, max(2 * p, shape.microbatches + shape.microbatches % 2))
        if shape.ranks % 2:
            raise self.refuse("the number of ranks is even", shape, nearest, "use schedule dualpipev")
        if shape.chunks_per_rank != 1:
            raise self.refuse("a rank holds one chunk of each direction", shape, nearest, "use schedule dualpipev")
        if nearest.microbatches != shape.microbatches:
            raise self.refuse("microbatches are even and at least twice the ranks", shape, nearest)

    def placement(self, shape: Shape) -> Placement:
        """Return two lanes, stage c on rank c and on rank p-1-c; the first half of the microbatches takes lane 0."""
        self.check(shape)
        return Placement.bidirectional(shape, np.arange(shape.microbatches) * 2 >= shape.microbatches)

    def readable(self, shape: Shape, placement: Placement) -> list[Iterator[Cell]]:
        """Return, for every rank, the words that it says, each with the next microbatch of its kind and phase."""
        self.check(shape)
        p, half = shape.ranks, shape.microbatches // 2

        def of_rank(rank: int) -> Iterator[Cell]:
            near = min(rank, p - 1 - rank)
            chunk, first = (near, p - 1 - near), (0, half) if near == rank else (half, 0)
            return dual_cells(p // 2, near, half - p + near + 1, chunk, first)

        return [of_rank(rank) for rank in range(p)]

    def order(self, shape: Shape, placement: Placement) -> PipelineOrder:
        """Return the order of `readable` as arrays.

        >>> print(DualPipe().order(Shape(2, 4), DualPipe().placement(Shape(2, 4))).to_text(), end="")
        0F0,1F2,0F1,1B2,(1F3;0B0),1B3,0I1,0W1
        0F2,1F0,0F3,1B0,(1F1;0B2),1B1,0I3,0W3
        """
        self.check(shape)
        p, half = shape.ranks, shape.microbatches // 2
        rank = np.arange(p)
        near = np.minimum(rank, p - 1 - rank)
        down = np.where(near == rank, 0, half)
        phrases = dual_phrases(p // 2, near, half - p + near + 1)
        return by_phrases(phrases, [near, p - 1 - near], half, [down, half - down])


def dual_phrases(depth: int, near: np.ndarray, turns: np.ndarray) -> list[tuple[np.ndarray, str]]:
    """Return the phrases of DualPipe and DualPipeV, see `by_phrases`.

    Args:
        depth: ranks from an end of the pipeline to its turn.
        near: [ranks] distance of each from its end.
        turns: [ranks] how often the fused pairs repeat.
    """
    far = depth - 1 - near
    split = near + 1
    inner = far == 0
    return [
        (2 * far, "F0"),
        (split, "F0 F1"),
        (far, "I1 W F1"),
        (inner.astype(int), "F0 B1 F1&B0"),
        (turns - inner, "F0&B1 F1&B0"),
        (far, "B1 F1&B0"),
        (split // 2, "B1 B0"),
        (split % 2, "B1 I0"),
        (split // 2, "I1 I0"),
        (far, "W I0"),
        (split, "W"),
    ]


def dual_cells(depth: int, near: int, turns: int, chunk: tuple[int, int], first: tuple[int, int]) -> Iterator[Cell]:
    """Yield the operations of one rank of DualPipe or DualPipeV; W takes the oldest split backward.

    Args:
        depth, near, turns: as in `dual_phrases`.
        chunk, first: chunk and first microbatch of either phase.
    """
    forwards, backwards = (count(first[0]), count(first[1])), (count(first[0]), count(first[1]))
    waiting: deque[tuple[int, int]] = deque()

    def make(word: str) -> Action:
        if word == "W":
            return Action("W", *waiting.popleft())
        phase = int(word[1])
        which = chunk[phase], next((forwards if word[0] == "F" else backwards)[phase])
        if word[0] == "I":
            waiting.append(which)
        return Action(word[0], *which)  # type: ignore[arg-type]

    def fused(forward: str, backward: str) -> Cell:
        return make(forward), make(backward)

    far = depth - 1 - near
    yield from map(make, ["F0"] * (2 * far) + ["F0", "F1"] * (near + 1) + ["I1", "W", "F1"] * far)
    for turn in range(turns):
        if turn == 0 and far == 0:
            yield make("F0")
            yield make("B1")
        else:
            yield fused("F0", "B1")
        yield fused("F1", "B0")
    for _ in range(far):
        yield make("B1")
        yield fused("F1", "B0")
    whole = near + 1
    for number in range(2 * (near + 1)):
        yield make(("B" if number < whole else "I") + ("1", "0")[number % 2])
    yield from map(make, ["W", "I0"] * far + ["W"] * (near + 1))
