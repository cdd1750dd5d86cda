"""In what turns a chain of layers runs backward: published counts, every plan replayed, the least work by brute force."""

from __future__ import annotations

import functools
import heapq
import math
import random
from collections.abc import Sequence

import pytest

from simulator.schedules.reversal import Reversal, each, every, first, groups, halves, least_repeats, revolve

PUBLISHED = {(10, 3): 15, (12, 3): 21, (24, 4): 51, (48, 5): 116, (96, 6): 264, (96, 9): 222}
"""Layers, inputs -> forwards run again at least (Griewank and Walther, Algorithm 799)."""


def replayed(plan: Reversal, times: Sequence[float], sizes: Sequence[float], room: float) -> float:
    """Work run again when the turns are taken one by one; every input that is read stands, and there is room for all."""
    held, ahead, work = set(plan.stored), plan.layers - 1, 0.0
    for turn in plan.turns:
        assert ahead == turn.last
        assert not turn.again or turn.start in held
        assert all(turn.start < layer <= turn.first for layer in turn.stores)
        held.update(turn.stores)
        assert sum(sizes[layer] for layer in held) <= room + 1e-9
        work += sum(times[turn.start : turn.last + 1]) if turn.again else 0.0
        held.difference_update(range(turn.first, turn.last + 1))
        ahead = turn.first - 1
    assert ahead == -1
    assert not held
    return work


@pytest.mark.parametrize(("shape", "expected"), PUBLISHED.items())
def test_forwards_that_run_again_are_the_published_numbers(shape: tuple[int, int], expected: int) -> None:
    layers, inputs = shape
    plan = revolve([1.0] * layers, [1.0] * layers, inputs)
    assert (
        expected == least_repeats(layers, inputs) == plan.repeats == replayed(plan, [1] * layers, [1] * layers, inputs)
    )
    assert inputs == plan.most == len(plan.stored)


def test_the_closed_form_obeys_the_recursion() -> None:
    """t(L, c) = min over m of m + t(L - m, c - 1) + t(m, c), t(1, c) = 0, t(L, 1) = L (L - 1) / 2."""
    for inputs in range(1, 8):
        assert least_repeats(1, inputs) == 0
        for layers in range(2, 41):
            if inputs == 1:
                assert least_repeats(layers, 1) == layers * (layers - 1) // 2
                continue
            cuts = (m + least_repeats(layers - m, inputs - 1) + least_repeats(m, inputs) for m in range(1, layers))
            assert least_repeats(layers, inputs) == min(cuts)


def test_so_many_rounds_reverse_a_chain_of_binomial_length() -> None:
    """With c inputs and r repetitions of each layer at most C(c + r, c) layers, the last of which keeps all."""
    for inputs, rounds in ((2, 3), (3, 4), (5, 2)):
        layers = math.comb(inputs + rounds, inputs)
        work = [0] * layers
        for turn in revolve([1] * layers, [1] * layers, inputs).turns:
            for layer in range(turn.start, turn.last + turn.again):
                work[layer] += 1
        assert rounds == max(work)


def test_every_plan_of_equal_layers_runs_and_does_the_least() -> None:
    for layers in range(1, 30):
        for inputs in range(1, layers + 1):
            plan = revolve([1] * layers, [1] * layers, inputs)
            assert least_repeats(layers, inputs) == replayed(plan, [1] * layers, [1] * layers, inputs)


def brute(times: Sequence[int], sizes: Sequence[int], room: int) -> float:
    """Least work of forwards by a search of all states: layers left, where a forward stands, which inputs do.

    Steps: forward by a layer, store where there is room, drop, go back to an input that stands, turn the last layer left.  A turn costs
    nothing here: its own forward is counted as that which first came past it.
    """
    waiting, number, known = [(0.0, 0, (len(times) - 1, 0, frozenset([0])))], 0, set()
    while waiting:
        work, _, state = heapq.heappop(waiting)
        left, at, held = state
        if left < 0:
            return work
        if state in known:
            continue
        known.add(state)
        steps = [(0, (left, back, held)) for back in held] + [(0, (left, at, held - {drop})) for drop in held if drop]
        if at < left:
            steps.append((times[at], (left, at + 1, held)))
        if at not in held and sum(sizes[layer] for layer in held) + sizes[at] <= room:
            steps.append((0, (left, at, held | {at})))
        if at == left:
            rest = held - {left}
            steps += [(0, (left - 1, back, rest)) for back in rest] or [(0, (left - 1, 0, rest))] * (left == 0)
        for more, following in steps:
            number += 1
            heapq.heappush(waiting, (work + more, number, following))
    raise AssertionError("a chain can always be reversed from its first input")


def test_unequal_layers_are_reversed_with_the_least_work_that_there_is() -> None:
    drawn = random.Random(20261128)
    for layers in range(1, 9):
        for _ in range(6 if layers < 8 else 3):
            times = [drawn.randint(1, 5) for _ in range(layers)]
            sizes = [drawn.randint(1, 3) for _ in range(layers)]
            room = sizes[0] + drawn.randint(0, 6)
            found = replayed(revolve(times, sizes, room), times, sizes, room)
            assert brute(times, sizes, room) == found


def plain(times: Sequence[float], sizes: Sequence[float], room: float) -> float:
    """Least work by the recursion as it stands in the paper, for every room that comes up."""

    @functools.cache
    def least(start: int, end: int, left: float) -> float:
        if end - start < 2:
            return 0.0
        cuts = [sum(times[start : end - 1]) + least(start, end - 1, left)]
        for middle in range(start + 1, end):
            if sizes[middle] <= left:
                behind = least(middle, end, left - sizes[middle])
                cuts.append(sum(times[start:middle]) + behind + least(start, middle, left))
        return min(cuts)

    return least(0, len(times), room - sizes[0])


def test_what_is_left_out_of_the_recursion_is_never_the_best() -> None:
    drawn = random.Random(31)
    for case in range(200):
        layers, most = drawn.randint(2, 12), 3 if case % 2 else 10**8
        times = [drawn.choice([1, 1, 2, 3, 7]) for _ in range(layers)]
        sizes = [drawn.randint(1, most) for _ in range(layers)]
        room = max(sizes) * drawn.randint(1, 4)
        assert plain(times, sizes, room) == replayed(revolve(times, sizes, room), times, sizes, room)


def test_sixty_layers_that_are_all_different_are_reversed_at_once() -> None:
    drawn = random.Random(3)
    times, sizes = [drawn.random() for _ in range(60)], [drawn.random() for _ in range(60)]
    found = [replayed(revolve(times, sizes, n), times, sizes, n) for n in (1, 2, 40)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(sum(times[:-1]))


def test_layers_that_differ_in_time_alone_fill_the_room_while_the_forward_runs() -> None:
    drawn = random.Random(7)
    for _ in range(100):
        times = [drawn.choice([1.0, 1.3]) for _ in range(drawn.randint(2, 14))]
        plan = revolve(times, [1.0] * len(times), drawn.randint(1, len(times)))
        assert len(plan.stored) == plan.most


def test_halves_need_a_logarithm_of_inputs_and_of_rounds() -> None:
    for power in range(1, 9):
        plan = halves(2**power)
        assert power == plan.most == len(plan.stored)
        assert 2**power * power / 2 == plan.repeats == replayed(plan, [1] * 2**power, [1] * 2**power, power)


@pytest.mark.parametrize("layers", [1, 2, 7, 12])
def test_the_plain_plans_run_what_they_say(layers: int) -> None:
    ones = [1] * layers
    for size in range(1, layers + 1):
        plan = groups(layers, size)
        assert layers == plan.repeats == replayed(plan, ones, ones, layers)
        assert -(-layers // size) == len(plan.stored)
        assert size == first(layers, size).repeats == replayed(first(layers, size), ones, ones, layers)
        assert layers // size == every(layers, size).repeats == replayed(every(layers, size), ones, ones, layers)
    assert each(layers) == groups(layers, 1)
