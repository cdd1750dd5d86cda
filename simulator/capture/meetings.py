"""Ranks of one pipeline recorded apart, put together: which runs of different ranks are one message, and an order that all ranks keep.

The k-th send of a rank to another is what the k-th receive there takes; the k-th collective of two ranks is the same on both.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.capture.record import Capture
from simulator.capture.rows import Run
from simulator.errors import SpecError

__all__ = ["Meeting", "connected", "ordered"]

Place = tuple[int, int]
"""Number of a capture, and of a run in it."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """What is one row of the program: one run of one rank, or what two ranks do together (of a message the sender is the first)."""

    runs: tuple[Place, ...]


def connected(captures: Sequence[Capture]) -> list[Capture]:
    """Return those that exchange messages with the first one, directly or through others, by rank.

    Raises:
        SpecError: one of them sends to a rank that was not recorded.
    """
    by_rank = {capture.rank: capture for capture in captures}
    found, waiting = set[int](), [captures[0].rank]
    while waiting:
        rank = waiting.pop()
        if rank in found:
            continue
        found.add(rank)
        peers = {event.peer for event in by_rank[rank].events if event.work in ("send", "recv")}
        if missing := sorted(peers - by_rank.keys()):
            needed = ",".join(map(str, sorted({*found, *waiting, *peers})))
            raise SpecError(
                f"{captures[0].script}: rank {rank} exchanges messages with rank {missing[0]}, which was not recorded. Way out: all ranks "
                f"of a pipeline together, such as --rank {needed}, or no --rank"
            )
        waiting += peers
    return [by_rank[rank] for rank in sorted(found)]


def ordered(captures: Sequence[Capture], runs: Sequence[Sequence[Run]]) -> list[Meeting]:
    """Return all runs, those that are one message together, in an order in which each comes behind what it waits for.

    Raises:
        SpecError: messages of two ranks do not match, or the ranks wait for each other in a ring.
    """
    together = _together(captures, runs)
    meeting_of: dict[Place, Meeting] = {}
    for i, mine in enumerate(runs):
        for number in range(len(mine)):
            place = (i, number)
            meeting_of.setdefault(place, together.get(place) or Meeting((place,)))
    needs, behind = _needs(runs, meeting_of)
    ready = [(min(n for _, n in meeting.runs), meeting.runs) for meeting, count in needs.items() if not count]
    heapq.heapify(ready)
    out = []
    while ready:
        _, places = heapq.heappop(ready)
        meeting = meeting_of[places[0]]
        out.append(meeting)
        for later in behind[meeting]:
            needs[later] -= 1
            if not needs[later]:
                heapq.heappush(ready, (min(n for _, n in later.runs), later.runs))
    if len(out) < len(needs):
        i, number = min(next(meeting for meeting, count in needs.items() if count).runs)
        event = captures[i].events[runs[i][number].events[0]]
        raise SpecError(
            f"{captures[0].script}: its ranks wait for each other in a ring, one of them rank {captures[i].rank} at {event.name} of "
            f"{event.path or 'the step'}. Way out: post receives before what waits for them, as batch_isend_irecv does"
        )
    return out


def _together(captures: Sequence[Capture], runs: Sequence[Sequence[Run]]) -> dict[Place, Meeting]:
    """Runs that two ranks have together -> their meeting."""
    ranks = [capture.rank for capture in captures]
    found: dict[tuple[object, ...], dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for i, (capture, mine) in enumerate(zip(captures, runs, strict=True)):
        for number, run in enumerate(mine):
            event = capture.events[run.events[0]]
            if not capture.meets(event, ranks):
                continue
            who: tuple[object, ...] = (event.work, *capture.groups[event.group].ranks)
            if event.work in ("send", "recv"):
                who = (capture.rank, event.peer) if event.work == "send" else (event.peer, capture.rank)
            found[who][capture.rank].append((i, number))
    out: dict[Place, Meeting] = {}
    for who, by_rank in found.items():
        one, other = who[-2:]
        first, second = by_rank.get(one, []), by_rank.get(other, [])  # type: ignore[call-overload]
        sizes = [[captures[i].events[runs[i][n].events[0]].message for i, n in places] for places in (first, second)]
        if sizes[0] != sizes[1]:
            raise SpecError(
                f"{captures[0].script}: ranks {one} and {other} do not agree on their messages: {len(first)} of "
                f"{sum(sizes[0]):,.0f} B on the one side, {len(second)} of {sum(sizes[1]):,.0f} B on the other"
            )
        for pair in zip(first, second, strict=True):
            out |= dict.fromkeys(pair, Meeting(pair))
    return out


def _needs(
    runs: Sequence[Sequence[Run]], meeting_of: dict[Place, Meeting]
) -> tuple[dict[Meeting, int], dict[Meeting, list[Meeting]]]:
    """How many others each waits for, and who waits for each: the run before it on its stream, and what it names."""
    behind: dict[Meeting, list[Meeting]] = defaultdict(list)
    needs = dict.fromkeys(meeting_of.values(), 0)
    for i, mine in enumerate(runs):
        last: dict[int, int] = {}
        run_of = {event: number for number, run in enumerate(mine) for event in run.events}
        for number, run in enumerate(mine):
            before = {run_of[event] for event in run.after} | ({last[run.stream]} if run.stream in last else set())
            last[run.stream] = number
            for earlier in before:
                behind[meeting_of[(i, earlier)]].append(meeting_of[(i, number)])
                needs[meeting_of[(i, number)]] += 1
    return needs, behind
