"""Orders from slots and from phrases."""

from __future__ import annotations

import pytest

from simulator.schedules.arrange import by_phrases, by_slots


def test_slots_give_every_rank_its_own_turns() -> None:
    order = by_slots([[0, 3, 1], [5, 0, 2]], [0, 1, 0], [[0], [1]], [0, 0, 1])
    assert "0F0,0F1,0B0\n1B0,1F1,1F0\n" == order.to_text()


def test_phrases_number_each_kind_and_phase_by_itself_on_every_rank() -> None:
    phrases = [([2, 1], "F0"), ([0, 1], "F1 B1"), (1, "B0")]
    assert "0F0,0F1,0B0\n1F0,3F0,3B0,1B0\n" == by_phrases(phrases, [[0, 1], [2, 3]], 9).to_text()


def test_a_bare_w_takes_the_oldest_split_backward_of_either_phase() -> None:
    order = by_phrases([(1, "F0 F1 I1 I0 W W")], [[0], [1]], 9, [[0], [4]])
    assert "0F0,1F4,1I4,0I0,1W4,0W0\n" == order.to_text()


def test_pairs_stay_pairs_when_microbatches_are_left_out() -> None:
    order = by_phrases([(3, "F0"), (1, "F1 B1"), (1, "F1&B0")], [[0], [1]], 2)
    assert "0F0,0F1,1F0,1B0,(1F1;0B0)\n" == order.to_text()


@pytest.mark.parametrize("words", ["X0", "F2", "F", "F0B0"])
def test_a_word_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="a word is kind and phase"):
        by_phrases([(1, words)], [[0], [1]], 1)
