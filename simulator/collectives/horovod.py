"""Horovod's tensor fusion: gradients become ready one by one, a clock ticks, and what is ready goes in one all_reduce.

    tick ... tick ... tick          at each tick: take tensors in the order they were ready, fill a buffer up to the
     a b c    d e                   threshold, all_reduce it, fill the next; the next tick comes when the clock says so
    [abc]    [de]                   and the last all_reduce is done

Few large calls instead of many small ones: the cost is the wait for the tick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.errors import PlanError
from simulator.units import parse

__all__ = ["CYCLE_TIME", "FUSION_THRESHOLD", "FusedTime", "fused_seconds"]

FUSION_THRESHOLD = parse("128 MiB", "B")
CYCLE_TIME = parse("1 ms", "s")
"""Defaults since Horovod 0.21 (release notes, pull request 2468); before, 64 MiB and 5 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedTime:
    """When the last of many tensors is reduced, and by how many calls.

    Args:
        end: [s] from the same zero as the times at which tensors were ready.
        busy: seconds in which an all_reduce ran [s].
        messages: size of each call, in order [B].
    """

    end: float
    busy: float
    messages: tuple[float, ...]


def fused_seconds(
    sizes: Sequence[float],
    ready: Sequence[float],
    seconds: Callable[[float], float],
    threshold: float = FUSION_THRESHOLD,
    cycle: float = CYCLE_TIME,
) -> FusedTime:
    """Return when tensors are reduced that go in fused buffers.

    Args:
        sizes: of the tensors [B].
        ready: when each is ready [s].
        seconds: what one all_reduce of a message [B] takes, such as `lambda s: collective_seconds(...).seconds` [s].
        threshold: size of the fusion buffer [B]; 0 = no fusion; a larger tensor goes alone.
        cycle: time between two looks at what is ready [s].

    Raises:
        PlanError: sizes and times differ in number, or a value is below zero (a cycle of 0 is allowed).

    >>> fused_seconds([1.0, 1.0, 4.0], [0.0, 0.5, 2.5], lambda s: 0.25, threshold=4.0, cycle=1.0).messages
    (1.0, 1.0, 4.0)
    >>> fused_seconds([1.0, 1.0, 4.0], [0.1, 0.5, 2.5], lambda s: 0.25, threshold=4.0, cycle=1.0).messages
    (2.0, 4.0)
    """
    if len(sizes) != len(ready) or any(not 0 <= v < math.inf for v in (*sizes, *ready, threshold, cycle)):
        raise PlanError(
            f"every tensor needs a size and a time, finite and not below zero, as must be threshold and cycle, but "
            f"there are {len(sizes)} sizes and {len(ready)} times, threshold {threshold} B, cycle {cycle} s"
        )
    waiting = sorted(range(len(sizes)), key=lambda i: (ready[i], i))
    now, busy, messages = 0.0, 0.0, []
    while waiting:
        first = ready[waiting[0]]
        if first > now:
            now = first if cycle == 0 else max(now, _tick(now, first, cycle))
        here = [i for i in waiting if ready[i] <= now]
        waiting = waiting[len(here) :]
        start = now
        for message in _buffers([sizes[i] for i in here], threshold):
            took = seconds(message)
            busy, now = busy + took, now + took
            messages.append(message)
        if waiting:
            now = max(now, start + cycle)
    return FusedTime(end=now, busy=busy, messages=tuple(messages))


def _tick(now: float, wanted: float, cycle: float) -> float:
    """Return the first tick at or after `wanted`, counted from `now`."""
    return now + math.ceil((wanted - now) / cycle) * cycle


def _buffers(sizes: Sequence[float], threshold: float) -> list[float]:
    """Return the messages that tensors make which are packed in order."""
    out: list[float] = []
    for size in sizes:
        if out and out[-1] + size <= threshold:
            out[-1] += size
        else:
            out.append(size)
    return out
