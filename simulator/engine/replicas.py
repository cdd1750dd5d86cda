"""The compiled engine over replicas: each row once, for all replicas, which wait for each other in the rows where they meet.

    end[row, replica] = max(row before on each stream, `after` + latency) + occupancy;  at a meeting: the latest of the group

A row is settled when all that it waits for is; the order in which that happens is the same for all replicas and all prices.
Times are those of the unfolded program, to the last bit, without interference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.engine.meetings import links_that_slow
from simulator.engine.noise import NoisyStep, StepTimes
from simulator.program.program import COMPUTE

__all__ = ["ReplicaEngine"]

Floats = NDArray[np.float64]


class ReplicaEngine:
    """Runs steps of one program; keeps its order and its arrays between them.

    Args:
        step: the program with its replicas.
        order: its rows, causes first.
        exact: keep when rows start, which `meets` has to know.
    """

    def __init__(self, step: NoisyStep, order: NDArray[np.int32], exact: bool = True) -> None:
        program, mesh = step.program, step.mesh
        self.step, self.order = step, order
        width = mesh.count
        groups = mesh.groups or (np.zeros(width, np.int64),)
        self.groups = np.ascontiguousarray(np.stack(groups), np.int32)
        self.columns: tuple[object, ...] = (
            np.ascontiguousarray(program.stream_offsets, np.int64),
            np.ascontiguousarray(program.previous, np.int32),
            np.ascontiguousarray(program.after_offsets, np.int64),
            np.ascontiguousarray(program.after, np.int32),
            np.ascontiguousarray(mesh.meeting, np.int32),
            self.groups,
        )
        self.start = np.empty((program.size, width)) if exact else np.empty((0, width))
        self.end = np.empty((0, width))
        self.links = _slowing(step)

    def run(self, times: StepTimes) -> float:
        """Fill `start` and `end` [rows, replicas] and return the makespan [s].

        Unless starts are kept, the times are used up: their occupancy becomes the ends.
        """
        self.end = times.occupancy.copy() if len(self.start) else times.occupancy
        settle: Any = _settle_replicas
        return float(settle(self.order, *self.columns, times.latency, times.latency_of, self.start, self.end))

    def forget(self) -> None:
        """Let go of the ends of the last step, which are as large as it is on all replicas."""
        self.end = self.end[:0].copy()

    def meets(self) -> bool:
        """Return whether rows that slow each other ran side by side in the last step: then its times are too short."""
        program, links = self.step.program, self.links
        if links is None:
            return True
        if not len(links):
            return False
        rows = np.flatnonzero(program.kind == COMPUTE)
        by_rank = rows[np.argsort(program.rank[rows], kind="stable")]
        edges = np.searchsorted(program.rank[by_rank], np.arange(program.ranks + 1))
        return bool(
            _side_by_side(
                links,
                np.ascontiguousarray(program.stream_offsets, np.int64),
                np.ascontiguousarray(program.streams, np.int32),
                np.ascontiguousarray(program.stream_rank, np.int32),
                by_rank,
                edges,
                self.start,
                self.end,
            )
        )

    def chain(self, times: StepTimes) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
        """Return (row, replica, seconds it ran) of the longest chain of the last step, in order of time."""
        last, replica = np.unravel_index(int(np.argmax(self.end)), self.end.shape)
        walk: Any = _chain
        rows, replicas, seconds = walk(
            int(last), int(replica), *self.columns, times.latency, times.latency_of, self.end
        )
        return rows, replicas, seconds


def _slowing(step: NoisyStep) -> NDArray[np.int64] | None:
    """Rows of links that slow compute or are slowed by it, in any class; None in doubt."""
    if not step.prices.interferes:
        return np.zeros(0, np.int64)
    found = [links_that_slow(replace(step.program, item=item), step.prices) for item in step.item_of]
    if any(rows is None for rows in found):
        return None
    return np.unique(np.concatenate([rows for rows in found if rows is not None]))


@compiled()
def _settle_replicas(  # type: ignore[no-untyped-def]
    order, stream_offsets, previous, after_offsets, after, meeting, groups, latency, latency_of, start, end
):
    """`end` holds the occupancies and takes the ends."""
    count = end.shape[1]
    latest, ready = np.zeros(count), np.zeros(count)
    far = latency.shape[1] > 1
    makespan = 0.0
    for row in order:
        for d in range(count):
            ready[d] = 0.0
        for entry in range(stream_offsets[row], stream_offsets[row + 1]):
            before = previous[entry]
            if before >= 0:
                seen = end[before]
                for d in range(count):
                    ready[d] = max(ready[d], seen[d])
        for entry in range(after_offsets[row], after_offsets[row + 1]):
            other = after[entry]
            seen = end[other]
            late = latency_of[other]
            if late < 0:
                for d in range(count):
                    ready[d] = max(ready[d], seen[d])
            elif far:
                waits = latency[late]
                for d in range(count):
                    ready[d] = max(ready[d], seen[d] + waits[d])
            else:
                same = latency[late, 0]
                for d in range(count):
                    ready[d] = max(ready[d], seen[d] + same)
        if meeting[row] >= 0:
            group = groups[meeting[row]]
            for d in range(count):
                latest[group[d]] = 0.0
            for d in range(count):
                latest[group[d]] = max(latest[group[d]], ready[d])
            for d in range(count):
                ready[d] = latest[group[d]]
        if len(start):
            begun = start[row]
            for d in range(count):
                begun[d] = ready[d]
        ended = end[row]
        for d in range(count):
            ended[d] += ready[d]
            makespan = max(makespan, ended[d])
    return makespan


@compiled()
def _side_by_side(links, stream_offsets, streams, stream_rank, compute, edges, start, end):  # type: ignore[no-untyped-def]
    """Whether a link runs while a compute row of one of its ranks does, in any replica; compute rows of a rank end in order."""
    for link in links:
        for entry in range(stream_offsets[link], stream_offsets[link + 1]):
            rank = stream_rank[streams[entry]]
            for d in range(start.shape[1]):
                begin, finish = start[link, d], end[link, d]
                if finish <= begin:
                    continue
                low, high = edges[rank], edges[rank + 1]
                while low < high:
                    middle = (low + high) // 2
                    if end[compute[middle], d] > begin:
                        high = middle
                    else:
                        low = middle + 1
                if low < edges[rank + 1] and start[compute[low], d] < finish:
                    return True
    return False


@compiled()
def _chain(  # type: ignore[no-untyped-def]
    row, replica, stream_offsets, previous, after_offsets, after, meeting, groups, latency, latency_of, end
):
    """Walk from the row that ends last to the first, through the one that let each start."""
    count, far = end.shape[1], latency.shape[1] > 1
    most = len(end) + 1
    rows, replicas, seconds = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most)
    length = 0
    while row >= 0 and length < most:
        rows[length], replicas[length] = row, replica
        ready, found, where = 0.0, -1, replica
        alone = meeting[row] < 0
        for d in range(replica if alone else 0, replica + 1 if alone else count):
            if not alone and groups[meeting[row], d] != groups[meeting[row], replica]:
                continue
            for entry in range(stream_offsets[row], stream_offsets[row + 1]):
                before = previous[entry]
                if before >= 0 and end[before, d] > ready:
                    ready, found, where = end[before, d], before, d
            for entry in range(after_offsets[row], after_offsets[row + 1]):
                other = after[entry]
                seen = end[other, d]
                if latency_of[other] >= 0:
                    seen += latency[latency_of[other], d if far else 0]
                if seen > ready:
                    ready, found, where = seen, other, d
        seconds[length] = end[row, replica] - ready
        length += 1
        row, replica = found, where
    return rows[:length][::-1].copy(), replicas[:length][::-1].copy(), seconds[:length][::-1].copy()
