"""What a user relies on in the model of PyTorch's caching allocator."""

from __future__ import annotations

import itertools
import random

import pytest

from simulator.lowering.memory.allocator import CachingAllocator

MIB = 2**20


@pytest.mark.parametrize(
    ("asked", "segment"),
    [(1.5 * MIB, 20 * MIB), (9 * MIB, 20 * MIB), (10 * MIB, 10 * MIB), (12 * MIB + 1, 14 * MIB), (700.0, 0)],
)
def test_a_request_that_finds_no_place_gets_a_segment_of_pytorchs_size(asked: float, segment: int) -> None:
    memory = CachingAllocator()
    memory.ask(asked)
    assert memory.held == segment


def test_the_smallest_place_that_is_large_enough_is_taken_and_split() -> None:
    memory = CachingAllocator()
    large, small = memory.ask(100 * MIB), memory.ask(40 * MIB)
    memory.give_back(large)
    memory.give_back(small)
    assert memory.ask(30 * MIB).segment == small.segment
    assert memory.ask(60 * MIB).segment == large.segment
    assert memory.ask(40 * MIB).segment == large.segment
    assert memory.held == 140 * MIB


def test_a_place_with_less_than_a_mebibyte_to_spare_is_not_split() -> None:
    memory = CachingAllocator()
    memory.give_back(memory.ask(100 * MIB))
    assert memory.ask(99.5 * MIB).size == 99.5 * MIB
    memory.ask(1 * MIB)
    assert memory.held == 120 * MIB


def test_neighbours_that_are_free_become_one_place() -> None:
    memory = CachingAllocator()
    memory.give_back(memory.ask(90 * MIB))
    thirds = [memory.ask(30 * MIB) for _ in range(3)]
    for third in (thirds[0], thirds[2], thirds[1]):
        memory.give_back(third)
    memory.ask(90 * MIB)
    assert memory.held == 90 * MIB


def test_an_expandable_segment_grows_where_a_new_one_would_be_needed() -> None:
    """The free end of 100 MiB is made 160 long; without, there would be 100 and 160."""
    memory, other = CachingAllocator(expandable=True), CachingAllocator()
    for one in (memory, other):
        one.give_back(one.ask(100 * MIB))
        one.ask(150 * MIB)
    assert (memory.held, other.held) == (160 * MIB, 250 * MIB)


@pytest.mark.parametrize("expandable", [False, True])
def test_places_never_overlap_and_all_of_it_comes_back(expandable: bool) -> None:
    chance, memory, there = random.Random(7), CachingAllocator(expandable), []
    for _ in range(3000):
        if there and chance.random() < 0.48:
            memory.give_back(there.pop(chance.randrange(len(there))))
        else:
            there.append(memory.ask(chance.choice((0.3, 2, 7, 11, 33, 90)) * MIB * (1 + chance.random())))
        assert memory.held >= sum(block.size for block in there if block.segment >= 0)
    large = sorted(block for block in there if block.segment >= 0)
    for one, other in itertools.pairwise(large):
        assert one.segment != other.segment or one.start + one.size <= other.start
    for block in there:
        memory.give_back(block)
    assert memory.asked == 0
    before = memory.held
    largest = max(end for _, end in _whole(memory).items())
    memory.ask(largest)
    assert memory.held == before, "free neighbours are one place again"


def _whole(memory: CachingAllocator) -> dict[int, int]:
    """Bytes of every segment."""
    sizes: dict[int, int] = {}
    for (segment, _), size in memory._size.items():
        sizes[segment] = sizes.get(segment, 0) + size
    return sizes
