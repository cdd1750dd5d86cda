"""Every collective algorithm moves the data it promises, in the time its closed form says."""

from __future__ import annotations

import pytest

from simulator.collectives import ALGORITHMS
from simulator.collectives.base import KINDS, Collective, Transfer
from simulator.hardware.group_placement import GroupPlacement, describe_group
from simulator.testing.collective_contract import CollectiveContract, contributions, step_seconds

MEMBERS = list(ALGORITHMS.members.values())


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
class TestEveryAlgorithm(CollectiveContract):
    def test_every_rank_ends_with_what_it_should_hold(self, member: Collective) -> None:
        self.check_result(member)

    def test_steps_take_the_time_of_the_closed_form(self, member: Collective) -> None:
        self.check_time(member)

    def test_arrays_and_legs_say_what_the_phases_say(self, member: Collective) -> None:
        self.check_patterns(member)

    def test_costs_rise_and_stay_below_the_wires(self, member: Collective) -> None:
        self.check_cost(member)

    def test_has_a_source(self, member: Collective) -> None:
        self.check_source(member)


def test_every_kind_has_an_algorithm() -> None:
    assert set(KINDS) == {kind for member in MEMBERS for kind in member.kinds}


def test_the_contract_catches_a_sum_that_counts_a_rank_twice() -> None:
    twice = Transfer(sources=(0,), destinations=(1,), parts=(0,), fraction=1.0, combines=True)
    with pytest.raises(AssertionError, match="twice"):
        contributions("reduce", 2, [(twice,), (twice,)], 1)


def test_the_contract_catches_a_ring_that_stops_early() -> None:
    class Early(type(ALGORITHMS.get("ring"))):  # type: ignore[misc]
        def phases(self, kind: str, place: GroupPlacement) -> tuple:
            return super().phases(kind, place)[:-1]

    with pytest.raises(AssertionError, match="lacks part"):
        CollectiveContract().check_result(Early())
    with pytest.raises(AssertionError, match="closed form"):
        CollectiveContract().check_time(Early())


def test_ring_all_reduce_of_four_ranks_moves_one_and_a_half_messages_in_six_hops() -> None:
    steps = list(ALGORITHMS.get("ring").steps("all_reduce", describe_group(4)))
    assert 6 + 1.5 == step_seconds(steps, message=1.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kinds": ("brodcast",)}, r"kinds: \['brodcast'\] is not among all_reduce"),
        ({"kinds": "broadcast"}, "kinds is a tuple of words, not 'broadcast'"),
        ({"protocols": ("simpel",)}, r"protocols: \['simpel'\] is not among ll, ll128, simple"),
        ({"source": ""}, "no source"),
    ],
)
def test_the_contract_catches_words_that_nobody_knows(changes: dict[str, object], said: str) -> None:
    """A kind that does not exist is never asked for, so nothing else would notice."""
    slip = type("Slip", (type(ALGORITHMS.get("binomial")),), changes)
    with pytest.raises(AssertionError, match=said):
        CollectiveContract().check_result(slip())
