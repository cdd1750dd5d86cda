"""Where a pipeline order leaves ranks idle, told without seconds: with backwards twice as long as forwards and free messages."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from simulator.lowering.steps.pattern import Pattern
from simulator.schedules.order import PipelineOrder

__all__ = ["idle_after"]

_LENGTHS = (1.0, 2.0, 1.0, 1.0)
"""Of F, B, I and W."""


def idle_after(order: PipelineOrder, pattern: Pattern) -> NDArray[np.bool_]:
    """Return [actions] whether the rank of an action is idle at some time between its end and that of the rank's last one.

    >>> from simulator.lowering.steps.pattern import Pattern
    >>> from simulator.schedules import SCHEDULES, Shape
    >>> chimera, shape = SCHEDULES.get("chimera"), Shape(4, 4)
    >>> placement = chimera.placement(shape)
    >>> order = chimera.order(shape, placement)
    >>> idle = idle_after(order, Pattern(order, placement))
    >>> [str(order.action(n)) for n in range(8) if idle[n]]  # rank 0 |01.2cc3dd.aa..bb|
    ['0F0', '0F1', '3F2', '3B2', '3F3', '3B3', '0B0']
    """
    begun, ended = _times(order, pattern)
    gap = np.zeros(order.size, bool)
    gap[:-1] = begun[1:] > ended[:-1]
    gap[order.rank_offsets[1:] - 1] = False
    later = np.zeros(order.size, bool)
    for low, high in zip(order.rank_offsets[:-1], order.rank_offsets[1:], strict=True):
        later[low:high] = np.logical_or.accumulate(gap[low:high][::-1])[::-1]
    return later


def _times(order: PipelineOrder, pattern: Pattern) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Run every action when its rank is free and its inputs are there."""
    messages = pattern.messages()
    sources = np.concatenate([messages.source, messages.local_source]).tolist()
    targets = np.concatenate([messages.target, messages.local_target]).tolist()
    feeds, waits = defaultdict(list), [0] * order.size
    for source, target in zip(sources, targets, strict=True):
        feeds[source].append(target)
        waits[target] += 1
    length = (np.array(_LENGTHS)[order.kind] * order.weight).tolist()
    begun, ended, ready = [0.0] * order.size, [0.0] * order.size, [0.0] * order.size
    at, end = order.rank_offsets[:-1].tolist(), order.rank_offsets[1:].tolist()
    rank, todo = pattern.rank.tolist(), list(range(order.ranks))
    while todo:
        here = todo.pop()
        n = at[here]
        while n < end[here] and not waits[n]:
            free = ended[n - 1] if n > int(order.rank_offsets[here]) else 0.0
            begun[n] = max(free, ready[n])
            ended[n] = begun[n] + length[n]
            n += 1
            at[here] = n
            for target in feeds[n - 1]:
                waits[target] -= 1
                ready[target] = max(ready[target], ended[n - 1])
                if not waits[target] and at[rank[target]] == target and rank[target] != here:
                    todo.append(rank[target])
    return np.array(begun), np.array(ended)
