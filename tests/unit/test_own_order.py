"""Orders of the user's own: the placement that they imply, and what is refused."""

from __future__ import annotations

import pytest

from simulator.errors import ProgramError
from simulator.schedules import SCHEDULES, Schedule, Shape
from simulator.schedules.own_order import placement_of, read_order

SHAPES = [Shape(4, 8), Shape(4, 8, 2), Shape(8, 16), Shape(16, 16)]


@pytest.mark.parametrize("schedule", list(SCHEDULES), ids=lambda schedule: schedule.name)
def test_the_placement_of_every_schedule_follows_from_its_order(schedule: Schedule) -> None:
    def taken(shape: Shape) -> bool:
        return shape in SHAPES and not _refused(schedule, shape)

    shape = next(shape for shape in SHAPES if taken(shape))
    expected = schedule.placement(shape).repeated(schedule.steps(shape))
    order = schedule.order(shape, schedule.placement(shape))
    assert expected == placement_of(order)
    assert (order, expected) == read_order("# mine\n" + order.to_text())[:2]


def _refused(schedule: Schedule, shape: Shape) -> bool:
    try:
        schedule.check(shape)
    except Exception:
        return True
    return False


def test_the_shape_counts_chunks_of_one_lane() -> None:
    for name, shape in (("interleaved", Shape(2, 4, 2)), ("bitpipe", Shape(2, 4, 2)), ("chimera", Shape(4, 4))):
        schedule = SCHEDULES.get(name)
        text = schedule.order(shape, schedule.placement(shape)).to_text()
        assert shape == read_order(text)[2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0F0,1F0,0B0\n1B0", "a chunk of a microbatch runs on one rank: 1F0 stands on rank 0"),
        ("0F0,0B0\n1F0,1B0,1F1,1B1", "0F1 is missing"),
        ("0F0,0B0,1F0,1B0,2F0,2B0\n3F0,3B0", "equally many chunks"),
        ("0F0,0B0\n0F0,0B0", "number both from 0, chunks over all ranks"),  # as if each rank numbered its own
        ("0F0,0B0\n9999F0,9999B0", "number both from 0"),
        ("0F0,0B0\n1F0", r"1B0 \(or 1I0\) is missing"),
        ("0F0\n# note\n1G0", "line 2, cell 1"),
        ("# nothing", "the text is empty"),
    ],
)
def test_an_order_that_breaks_a_rule_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        read_order(text)
