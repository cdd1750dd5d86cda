"""Every schedule that the family lists keeps the contract; its names lead to it and to nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import ProgramError, UnknownNameError
from simulator.schedules import SCHEDULES, PipelineOrder, Schedule, Shape
from simulator.schedules.one_f_one_b import OneFOneB
from simulator.testing.schedule_contract import ScheduleContract, blocked_at


@pytest.mark.parametrize("schedule", list(SCHEDULES), ids=lambda schedule: schedule.name)
def test_a_schedule_keeps_its_contract(schedule: Schedule) -> None:
    ScheduleContract(schedule).check_all()


def test_no_two_schedules_share_a_name() -> None:
    for schedule in SCHEDULES:
        for alias in (schedule.name, *schedule.aliases):
            assert schedule is SCHEDULES.get(alias)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("gpipe", "gpipe"),
        ("GPipe", "gpipe"),
        ("1f1b", "one_f_one_b"),
        ("1F1B", "one_f_one_b"),
        ("dapple", "one_f_one_b"),
        ("pipedream_flush", "one_f_one_b"),
        ("Interleaved1F1B", "interleaved_1f1b"),
        ("1F1B-interleaved", "interleaved_1f1b"),
        ("interleaved", "interleaved_1f1b"),
        ("chimera_direct", "chimera"),
        ("Chimera", "chimera"),
    ],
)
def test_a_schedule_is_found_by_the_names_people_use(name: str, stem: str) -> None:
    assert stem == SCHEDULES.get(name).name


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'chimera'"):
        SCHEDULES.get("chimaera")


class _EarlyBackward(OneFOneB):
    """1F1B whose arrays swap the first two actions of the last rank: its backward comes before its forward."""

    def order(self, shape, placement):
        order = super().order(shape, placement)
        kind = np.array(order.kind)
        first = order.rank_offsets[-2]
        kind[first : first + 2] = kind[first : first + 2][::-1]
        return PipelineOrder(order.rank_offsets, kind, order.chunk, order.microbatch)


class _LaterMicrobatchFirst(OneFOneB):
    """1F1B whose arrays number the microbatches from the end: complete and well placed, yet not its readable form."""

    def order(self, shape, placement):
        order = super().order(shape, placement)
        return PipelineOrder(order.rank_offsets, order.kind, order.chunk, shape.microbatches - 1 - order.microbatch)


class _TakesChunks(OneFOneB):
    """1F1B that forgets to refuse several chunks per rank."""

    def check(self, shape):
        """Take everything."""


@pytest.mark.parametrize("broken", [_EarlyBackward, _LaterMicrobatchFirst, _TakesChunks])
def test_the_contract_catches_a_broken_schedule(broken: type[Schedule]) -> None:
    with pytest.raises((AssertionError, ProgramError), match=r"breaks its contract|too early|missing"):
        ScheduleContract(broken()).check_shapes()


def test_a_schedule_under_another_name_than_its_file_is_caught() -> None:
    with pytest.raises(AssertionError, match="name of its file"):
        ScheduleContract(_TakesChunks()).check_identity()


def test_an_order_that_waits_for_itself_is_found() -> None:
    order = PipelineOrder.parse("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0")
    placement = OneFOneB().placement(Shape(2, 2))
    order.check(placement, 2)
    expected = ["0B0", "1F1"]
    assert expected == [str(action) for action in blocked_at(order, placement)]
