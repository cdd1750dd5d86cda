"""Any placement can become any other: the changes bring every rank what it is to have, whatever lies on several axes and in which order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.partition.layout import PARTIAL, REPLICATE, Placement, Shard
from simulator.partition.redistribute import moved_bytes, redistribute, sizes
from simulator.testing.simulated_ranks import Parts, SimulatedRanks
from simulator.workload.graph import Dim

MESH = (("a", 2), ("b", 3), ("c", 2))
DIMS = (Dim("x", 12), Dim("y", 24))
RANKS = SimulatedRanks(MESH)


def placements(partial: bool) -> st.SearchStrategy[dict[str, Placement]]:
    """Axes in any order, each cutting a dimension, or none, or with terms of a sum."""
    places = [Shard("x"), Shard("y"), REPLICATE, *([PARTIAL] if partial else [])]
    each = st.fixed_dictionaries({axis: st.sampled_from(places) for axis, _ in MESH})
    return st.tuples(st.permutations([axis for axis, _ in MESH]), each).map(lambda t: {a: t[1][a] for a in t[0]})


@given(placements(partial=True), placements(partial=False))
def test_every_placement_becomes_every_other(held: dict[str, Placement], wanted: dict[str, Placement]) -> None:
    whole = np.arange(12.0 * 24.0).reshape(12, 24)
    moves = redistribute(held, wanted)
    found = RANKS.change(RANKS.place(whole, DIMS, held), DIMS, moves)
    for at, part in RANKS.place(whole, DIMS, wanted).items():
        assert part.shape == found[at].shape
        assert (part == found[at]).all()


@given(placements(partial=True), placements(partial=False))
def test_messages_are_as_large_as_what_lies_on_the_ranks(
    held: dict[str, Placement], wanted: dict[str, Placement]
) -> None:
    ranks, whole = dict(MESH), np.zeros((12, 24))
    parts: Parts = RANKS.place(whole, DIMS, held)
    moves = redistribute(held, wanted)
    for move, size in sizes(held, moves, float(whole.size), ranks):
        before, parts = parts, RANKS.change(parts, DIMS, (move,))
        at = (0, 0, 0)
        assert size == before[at].size * (ranks[move.axis] if isinstance(move.held, Shard) else 1)
        if move.collective == "all_gather":
            assert moved_bytes(move, size, ranks[move.axis]) / ranks[move.axis] == parts[at].size - before[at].size


@given(placements(partial=False))
def test_what_lies_as_it_is_wanted_does_not_move(held: dict[str, Placement]) -> None:
    assert () == redistribute(held, held)
    assert () == redistribute(held, dict(sorted(held.items(), key=lambda item: str(item[1]))))
