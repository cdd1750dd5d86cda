"""Every schedule that the family lists keeps the contract; its names lead to it and to nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import PlanError, ProgramError, UnknownNameError
from simulator.schedules import SCHEDULES, PipelineOrder, Schedule, Shape
from simulator.schedules.one_f_one_b import OneFOneB
from simulator.schedules.order_check import check_order
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
        ("chimera_halving", "chimera_halving"),
        ("eager_1f1b", "eager_one_f_one_b"),
        ("LoopedBFS", "looped_bfs"),
        ("breadth-first", "breadth_first"),
        ("PipeDream", "pipedream"),
        ("pipedream_async", "pipedream"),
        ("PipeDream-2BW", "pipedream_2bw"),
        ("ZB-H1", "zb_h1"),
        ("InterleavedZeroBubble", "zb_interleaved"),
        ("ZBVZeroBubble", "zbv"),
        ("ZB-V", "zbv"),
        ("V-Half", "v_half"),
        ("v_min_pattern", "v_min"),
        ("DualPipe", "dualpipe"),
        ("DualPipeV", "dualpipev"),
        ("hanayo_greedy", "hanayo"),
        ("Seq1F1B", "seq1f1b"),
        ("GEMS", "gems"),
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
    check_order(order, placement, 2)
    expected = ["0B0", "1F1"]
    assert expected == [str(action) for action in blocked_at(order, placement)]


def test_parts_wait_for_the_parts_that_they_overlap() -> None:
    placement = OneFOneB().placement(Shape(2, 1))
    whole = "0F0,{}\n1F0,1B0.1/2,1B0.2/2"
    assert [] == blocked_at(PipelineOrder.parse(whole.format("0B0.2/2,0B0.1/2")), placement)
    stuck = PipelineOrder.parse("0F0.1/2,0B0.1/2,0F0.2/2,0B0.2/2\n1F0,1B0.1/2,1B0.2/2")
    assert ["0B0.1/2", "1F0"] == [str(action) for action in blocked_at(stuck, placement)]


def test_a_fused_pair_waits_for_both_inputs() -> None:
    order = PipelineOrder.parse("(0F0;0B1),0F1,0B0\n1F1,1B1,1F0,1B0")
    assert ["0F0", "1F1"] == [str(action) for action in blocked_at(order, OneFOneB().placement(Shape(2, 2)))]


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw"])
def test_without_a_flush_steps_run_into_each_other(name: str) -> None:
    schedule, shape = SCHEDULES.get(name), Shape(4, 2)
    assert 2 * 4 + 2 == schedule.steps(shape)
    order = schedule.steady_order(shape, 3)
    assert order == OneFOneB().order(Shape(4, 6), OneFOneB().placement(Shape(4, 6)))
    check_order(order, schedule.placement(shape).repeated(3), 6)


def test_a_schedule_with_a_flush_has_no_steady_order() -> None:
    with pytest.raises(PlanError, match="schedule one_f_one_b flushes; ask for one step, or use schedule pipedream"):
        OneFOneB().steady_order(Shape(4, 8), 2)


@pytest.mark.parametrize(
    ("name", "versions"), [("pipedream", [4, 3, 2, 1]), ("pipedream_2bw", [2, 2, 2, 2]), ("chimera", [1, 1, 1, 1])]
)
def test_versions_of_the_weights_that_a_rank_keeps(name: str, versions: list[int]) -> None:
    assert versions == SCHEDULES.get(name).weight_versions(Shape(4, 8)).tolist()


@pytest.mark.parametrize("name", ["zbv", "dualpipe", "v_half", "hanayo", "zb_interleaved", "chimera_halving"])
def test_an_order_for_many_ranks_and_microbatches_is_complete(name: str) -> None:
    shape = Shape(32, 128, 1 if name in ("dualpipe", "chimera_halving") else 2)
    placement = SCHEDULES.get(name).placement(shape)
    check_order(SCHEDULES.get(name).order(shape, placement), placement, 128)
