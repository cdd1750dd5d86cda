"""The events of a step cut into rows: runs of events of one stream that nothing interrupts.

A run ends where another stream waits for it, where it waits itself, where the block or the phase changes, and where memory needs it: what a
row allocates stands from its start and what it frees goes at its end, so a row is cut before that would lift the peak of the step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.capture.record import Capture, Event

__all__ = ["Run", "block_of", "cut", "levels"]

_BLOCK = re.compile(r"^(.*?\.|)(\d+)(?=\.|$)")


@dataclass(slots=True)
class Run:
    """A row in the making: its events, in order."""

    stream: int
    events: list[int] = field(default_factory=list)
    after: tuple[int, ...] = ()


def block_of(path: str) -> tuple[str, str]:
    """Return the repeated block that a module belongs to, and its name within: up to the first number, which becomes `*`.

    >>> block_of("layers.12.attention.wq"), block_of("norm"), block_of("")
    (('layers.*', 'attention.wq'), ('norm', ''), ('', ''))
    """
    found = _BLOCK.match(path)
    if found is None:
        head, _, rest = path.partition(".")
        return head, rest
    return f"{found.group(1)}*", path[found.end() :].removeprefix(".")


def _place(path: str) -> str:
    """As `block_of`, with its number: where one block ends and the next begins."""
    found = _BLOCK.match(path)
    return found.group(0) if found else path.partition(".")[0]


def _side(phase: str) -> str:
    return "backward" if phase == "recompute" else phase


def levels(capture: Capture) -> NDArray[np.float64]:
    """Return [events] bytes that stand while each event runs."""
    change = np.zeros(len(capture.events) + 1)
    for storage in capture.storages:
        change[max(0, storage.born)] += storage.bytes
        if storage.died is not None:
            change[storage.died + 1] -= storage.bytes
    return np.cumsum(change)[:-1]


def cut(capture: Capture, ranks: Sequence[int] = ()) -> list[Run]:
    """Return the rows of a step, in the order in which their first events were issued.

    Args:
        ranks: that were recorded with it; what two of them have together is a row by itself.
    """
    events = capture.events
    ends = {earlier for event in events for earlier in event.after}
    open_runs: dict[int, Run] = {}
    runs: list[Run] = []
    memory = _Memory(capture)
    for number, event in enumerate(events):
        alone = event.communicates and (event.stream != 0 or not event.waits or capture.meets(event, ranks))
        run = open_runs.get(event.stream)
        if (
            run is None
            or alone
            or event.after
            or _breaks(events[run.events[-1]], event)
            or (event.stream == 0 and memory.rises(run, number))
        ):
            run = Run(stream=event.stream, after=event.after)
            open_runs[event.stream] = run
            runs.append(run)
        run.events.append(number)
        if alone or number in ends:
            del open_runs[event.stream]
    return runs


def _breaks(before: Event, event: Event) -> bool:
    return _side(before.phase) != _side(event.phase) or _place(before.path) != _place(event.path)


class _Memory:
    """Whether a row that grows by an event would lift the peak."""

    def __init__(self, capture: Capture) -> None:
        self.level = levels(capture)
        self.peak = float(self.level.max(initial=0.0))
        n = len(capture.events)
        self.born = np.zeros(n)
        self.by_birth: list[list[tuple[float, int]]] = [[] for _ in range(n)]
        for storage in capture.storages:
            if storage.born >= 0 and n:
                self.born[min(storage.born, n - 1)] += storage.bytes
                died = n if storage.died is None else storage.died
                self.by_birth[min(storage.born, n - 1)].append((storage.bytes, died))
        self.total = np.concatenate([[0.0], np.cumsum(self.born)])

    def rises(self, run: Run, number: int) -> bool:
        first = run.events[0]
        base = float(self.level[first] - self.born[first])
        if base + float(self.total[number + 1] - self.total[first]) <= self.peak:
            return False
        stays, change = 0.0, np.zeros(number + 2 - first)
        for place in range(first, number + 1):
            for size, died in self.by_birth[place]:
                if died > number:
                    stays += size
                else:
                    change[place - first] += size
                    change[died + 1 - first] -= size
        return base + stays + float(np.cumsum(change).max()) > self.peak * (1.0 + _ROUNDING)


_ROUNDING = 2.0**-40
