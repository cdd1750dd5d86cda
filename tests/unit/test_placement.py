"""Where chunks live: what each kind of placement puts on which rank, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.schedules import Placement, Shape


def test_linear_gives_every_rank_its_stage() -> None:
    placement = Placement.linear(Shape(4, 3))
    assert [[0, 1, 2, 3]] == placement.rank_of.tolist()
    assert [0, 0, 0] == placement.lane_of.tolist()
    assert (1, 4, 4, 3) == (placement.lanes, placement.chunks, placement.ranks, placement.microbatches)


def test_linear_goes_round_once_per_chunk_of_a_rank() -> None:
    assert [[0, 1, 2, 0, 1, 2]] == Placement.linear(Shape(3, 3, 2)).rank_of.tolist()


def test_bidirectional_has_the_second_lane_run_back() -> None:
    placement = Placement.bidirectional(Shape(4, 2), [0, 1])
    assert [[0, 1, 2, 3], [3, 2, 1, 0]] == placement.rank_of.tolist()
    assert [0, 1] == placement.lane_of.tolist()


def test_zigzag_turns_at_either_end() -> None:
    assert [[0, 1, 2, 2, 1, 0]] == Placement.zigzag(Shape(3, 1, 2)).rank_of.tolist()
    assert [[0, 1, 1, 0, 0, 1, 1, 0]] == Placement.zigzag(Shape(2, 1, 4)).rank_of.tolist()


def test_repeated_numbers_the_microbatches_of_all_steps_through() -> None:
    placement = Placement.bidirectional(Shape(2, 2), [0, 1]).repeated(3)
    assert [0, 1, 0, 1, 0, 1] == placement.lane_of.tolist()
    assert [[0, 1], [1, 0]] == placement.rank_of.tolist()


@pytest.mark.parametrize(
    ("placement", "copies"),
    [
        (Placement.linear(Shape(4, 4)), [1, 1, 1, 1]),
        (Placement.linear(Shape(2, 4, 4)), [1, 1]),
        (Placement.bidirectional(Shape(4, 2), [0, 1]), [2, 2, 2, 2]),
        (Placement([[0, 1, 1, 0]], [0]), [1, 1]),
    ],
    ids=["linear", "interleaved", "chimera", "v_shaped"],
)
def test_a_rank_holds_one_copy_of_the_weights_per_lane(placement: Placement, copies: list[int]) -> None:
    assert copies == placement.weight_copies().tolist()


def test_placements_are_equal_by_value_and_read_only() -> None:
    placement = Placement.linear(Shape(2, 2))
    assert Placement([[0, 1]], [0, 0]) == placement
    assert Placement([[1, 0]], [0, 0]) != placement
    assert Placement([[0, 1]], [0]) != placement
    with pytest.raises(ValueError, match="read-only"):
        placement.rank_of[0, 0] = 1


def test_a_placement_does_not_follow_the_array_it_was_made_from() -> None:
    rank_of = np.array([[0, 1]], np.int32)
    placement = Placement(rank_of, np.zeros(1, np.int8))
    rank_of[0, 0] = 7
    assert [[0, 1]] == placement.rank_of.tolist()


@pytest.mark.parametrize(
    ("rank_of", "lane_of", "reason"),
    [
        ([0, 1], [0], "one row per lane"),
        ([[]], [0], "one row per lane"),
        ([[0, -1]], [0], "rank >= 0"),
        ([[0, 1]], [1], "use lanes 0..0"),
        ([[0, 1]], [-1], "use lanes 0..0"),
        ([[0, 1]], [[0]], "one of its 1 lanes"),
        ([[0, 2**40]], [0], "whole numbers"),
        ([[0, 1]], np.array([256]), "whole numbers"),
        ([[0, 0.5]], [0], "whole numbers"),
        ([["a", 1]], [0], "whole numbers"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(rank_of: object, lane_of: object, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        Placement(rank_of, lane_of)  # type: ignore[arg-type]


def test_bidirectional_wants_a_lane_for_every_microbatch() -> None:
    with pytest.raises(PlanError, match="1 lanes for 2 microbatches"):
        Placement.bidirectional(Shape(2, 2), [0])


@pytest.mark.parametrize("values", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-4, 8, 1), (2.5, 8, 1), (True, 8, 1)])
def test_a_shape_is_made_of_whole_numbers_from_one(values: tuple[int, int, int]) -> None:
    with pytest.raises(PlanError, match="whole number >= 1"):
        Shape(*values)


def test_a_shape_prints_its_names() -> None:
    assert "ranks=4, microbatches=8, chunks_per_rank=2" == str(Shape(4, 8, 2))
