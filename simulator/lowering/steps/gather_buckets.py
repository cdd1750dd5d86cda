"""Gathers of weights that the last step updated: of ZeRO-1 and ZeRO-2 with overlap_parameters, bucket by bucket.

The layers of a bucket wait for its gather in their first forward.
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.steps.assign import classes_of
from simulator.lowering.steps.parameters import Held, bucket_held, words
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure

__all__ = ["gather_buckets"]


def gather_buckets(state: State) -> None:
    """One gather per bucket of a chunk's weights, before the first forward that needs them."""
    element, dtype = state.resolved.precision.element, state.resolved.precision.compute
    items: dict[tuple[tuple[str, ...], Held], list[int]] = {}
    places: list[tuple[tuple[int, int], Gathers]] = []
    chunks, class_of = classes_of(state.chunks)
    for number, variant in state.build(_kinds_of_first_forwards, class_of):
        found: list[int] = []
        segments: list[int] = []
        of_group: dict[tuple[str, ...], list[int]] = {}
        for group, first, _ in state.cuts[(number, "forward", variant)].spans:
            if group not in of_group:
                held = bucket_held(state, chunks[number], group).trained
                if (group, held) not in items:
                    items[group, held] = [
                        state.link("all_gather", f"weights of {words(group)}{what}", count * element, dtype, axes)
                        for what, count, axes in held.parts(state.resolved)
                    ]
                of_group[group] = items[group, held]
            found += of_group[group]
            segments += [first] * len(of_group[group])
        places.append(((number, variant), (tuple(found), tuple(segments))))
    state.build(_add_buckets, class_of, tuple(places))


Gathers = tuple[tuple[int, ...], tuple[int, ...]]
"""Items, and of each the segment that waits for it."""


def _first_forwards(rows: Structure, class_of: tuple[int, ...]) -> list[tuple[int, tuple[int, int]]]:
    """(action, (class of its chunk, how it is cut)) of the first forwards of chunks."""
    first = np.flatnonzero(rows.pattern.first_forward)
    columns = first, rows.order.chunk[first], rows.variant[first]
    return [(a, (class_of[c], v)) for a, c, v in zip(*(column.tolist() for column in columns), strict=True)]


def _kinds_of_first_forwards(rows: Structure, class_of: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return (class of its chunk, how it is cut) of the first forwards that differ, as they come, and make no row."""
    return tuple(dict.fromkeys(kind for _, kind in _first_forwards(rows, class_of)))


def _add_buckets(
    rows: Structure, class_of: tuple[int, ...], places: tuple[tuple[tuple[int, int], Gathers], ...]
) -> None:
    """Add the gathers of first forwards, which are told by their kinds."""
    of_kind = dict(places)
    found = [
        (item, a, first)
        for a, kind in _first_forwards(rows, class_of)
        for item, first in zip(*of_kind[kind], strict=True)
    ]
    numbers, action, place = np.array(found, np.int64).reshape(-1, 3).T
    added = rows.on_lane("dp", numbers, rows.pattern.rank[action], chunk=rows.order.chunk[action])
    rows.wait(rows.first_row[action] + place, added)
