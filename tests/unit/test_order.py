"""Actions and orders: their text and back, their columns, and every rule that `check` keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import PlanError, ProgramError
from simulator.schedules import SCHEDULES, Action, PipelineOrder, Placement, Shape
from simulator.schedules.order import B, F, I, W, warm_up_then_pairs

ACTIONS = st.builds(Action, st.sampled_from("FBIW"), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))


@given(ACTIONS)
def test_an_action_is_its_text(action: Action) -> None:
    assert action == Action.parse(str(action))


@given(st.lists(st.lists(ACTIONS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_an_order_is_its_text_and_its_actions(ranks: list[list[Action]]) -> None:
    order = PipelineOrder.from_actions(ranks)
    assert order == PipelineOrder.parse(order.to_text())
    assert ranks == [order.rows(rank) for rank in range(order.ranks)]


def test_the_short_names_make_the_four_kinds() -> None:
    expected = ["2F0", "2B0", "2I0", "2W0"]
    assert expected == [str(make(2, 0)) for make in (F, B, I, W)]


def test_an_order_reads_with_empty_cells_spaces_and_any_line_end() -> None:
    expected = PipelineOrder.from_actions([[F(0, 0), B(0, 0)], [F(1, 0), B(1, 0)]])
    assert expected == PipelineOrder.parse(" 0F0,, 0B0 ,\r\n1F0,1B0\r\n\r\n")


def test_columns_are_ordered_by_rank_and_read_only() -> None:
    order = PipelineOrder.parse("0F0,0B0\n1F0,1I0,1W0")
    assert [0, 2, 5] == order.rank_offsets.tolist()
    assert [0, 1, 0, 2, 3] == order.kind.tolist()
    assert [0, 0, 1, 1, 1] == order.chunk.tolist()
    assert [0, 0, 1, 1, 1] == order.rank.tolist()
    assert (2, 5) == (order.ranks, order.size)
    with pytest.raises(ValueError, match="read-only"):
        order.kind[0] = 1


def test_orders_differ_when_an_action_moves() -> None:
    assert PipelineOrder.parse("0F0,0B0\n1F0,1B0") != PipelineOrder.parse("0F0,0B0,1F0\n1B0")
    assert PipelineOrder.parse("0F0,0F1") != PipelineOrder.parse("0F1,0F0")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0F0,0X0", r"line 1, cell 2: .*'0X0'"),
        ("0F0\n1f0", r"line 2, cell 1: .*'1f0'"),
        ("0F0,F0", "line 1, cell 2"),
        ("0F", "line 1, cell 1"),
        ("-1F0", "line 1, cell 1"),
        ("0F0 0B0", "line 1, cell 1"),
        ("٣F0", "line 1, cell 1"),
        ("99999999999F0", "line 1, cell 1"),
        ("4294967296F0", "line 1, cell 1"),
        ("0F0,0SEND_F0", "line 1, cell 2: .*transfers follow from the order"),
        ("1RECV_F0,1F0", "line 1, cell 1: .*transfers follow from the order"),
        ("0UNSHARD,0F0", "collectives follow from the plan"),
        ("0F0,0B0,0REDUCE_GRAD", "line 1, cell 3: .*collectives follow from the plan"),
        ("(0F1;3B0)OVERLAP_F_B", "write them as separate cells"),
        ("2B3.1/2", "number them as microbatches"),
        ("2F3+4", "number them as microbatches"),
        ("0F0\n\n1F0", "line 2: .*empty"),
        (",,\n1F0", "line 1: .*empty"),
        ("", "the text is empty"),
        (" \n\n", "the text is empty"),
    ],
)
def test_a_text_that_is_no_order_is_refused_with_line_and_cell(text: str, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        PipelineOrder.parse(text)


GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1"
"""Two ranks, two microbatches; the last backward is split."""


def test_a_good_order_passes() -> None:
    PipelineOrder.parse(GOOD).check(Placement.linear(Shape(2, 2)), 2)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("0F1,", "", "0F1 is missing"),
        (",0B1", "", r"0B1 \(or 0I1\) is missing"),
        ("1I1,", "", r"1B1 \(or 1I1\) is missing"),
        (",1W1", "", "1W1 is missing"),
        ("1W1", "1W1,1W1", "1W1 stands twice on rank 1"),
        ("0B1", "0B1,0B0", "0B0 stands twice on rank 0"),
        ("1W1", "1W1,1B1", "1B1 stands beside its own I or W"),
        ("0B0,0B1", "0B0,0B1,0W1", "0B1 stands beside its own I or W"),
        ("1F0,1B0", "1B0,1F0", "1F0 is too early"),
        ("1F1,1I1", "1I1,1F1", "1F1 is too early"),
        ("1I1,1W1", "1W1,1I1", "1W1 is too early"),
        ("0F0,", "1F0,", "1F0 stands on rank 0, but its lane has chunk 1 on rank 1"),
        ("0F1,", "0F2,", "0F2 stands on rank 0"),
        ("0F1,", "2F1,", "chunk lies in 0..1"),
        (",1F1,1I1,1W1", ",1F1,1I1,1W1\n0F1", "the order has 3 ranks, the placement 2"),
    ],
)
def test_check_names_the_action_that_breaks_a_rule(old: str, new: str, reason: str) -> None:
    assert old in GOOD
    with pytest.raises(ProgramError, match=reason):
        PipelineOrder.parse(GOOD.replace(old, new, 1)).check(Placement.linear(Shape(2, 2)), 2)


def test_check_wants_the_lane_that_the_microbatch_takes() -> None:
    chimera = SCHEDULES.get("chimera")
    order = chimera.order(Shape(2, 2), chimera.placement(Shape(2, 2)))
    order.check(Placement.bidirectional(Shape(2, 2), [0, 1]), 2)
    with pytest.raises(ProgramError, match="its lane has chunk 0 on rank 1"):
        order.check(Placement.bidirectional(Shape(2, 2), [1, 0]), 2)


def test_check_wants_the_microbatches_of_the_step() -> None:
    with pytest.raises(ProgramError, match="2 microbatches, the step 3"):
        PipelineOrder.parse(GOOD).check(Placement.linear(Shape(2, 2)), 3)


@pytest.mark.parametrize(
    "columns",
    [
        ([0, 2], [0, 1], [0, 0], [0]),
        ([0, 1], [0, 1], [0, 0], [0, 0]),
        ([1, 2], [0, 1], [0, 0], [0, 0]),
        ([0, 2, 1, 2], [0, 1], [0, 0], [0, 0]),
        ([0], [], [], []),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: tuple) -> None:
    with pytest.raises(ProgramError, match="columns of one length"):
        PipelineOrder(*columns)


def test_a_number_that_does_not_fit_is_refused_and_not_wrapped() -> None:
    with pytest.raises(ProgramError, match="kind of an order holds whole numbers"):
        PipelineOrder([0, 2], np.array([0, 257]), [0, 0], [0, 0])  # type: ignore[arg-type]


def test_a_kind_that_is_none_is_refused() -> None:
    order = PipelineOrder([0, 2], [0, 4], [0, 0], [0, 0])  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"kind lies in 0\.\.3"):
        order.check(Placement.linear(Shape(1, 1)), 1)


@given(st.integers(0, 9), st.integers(1, 9))
def test_warm_up_then_pairs_reads_as_it_says(warm_up: int, count: int) -> None:
    warm = min(warm_up, count)
    expected = [("F", n) for n in range(warm)]
    for n in range(count - warm):
        expected += [("F", warm + n), ("B", n)]
    expected += [("B", n) for n in range(count - warm, count)]
    kind, number = warm_up_then_pairs([warm_up], count)
    assert expected == [("FB"[k], n) for k, n in zip(kind[0], number[0].tolist(), strict=True)]


@pytest.mark.parametrize(
    ("name", "shape", "rule", "way_out"),
    [
        ("1f1b", Shape(4, 8, 2), "one chunk", r"chunks_per_rank=1; or use schedule interleaved_1f1b"),
        ("gpipe", Shape(4, 8, 2), "one chunk", r"chunks_per_rank=1; or use schedule interleaved_1f1b"),
        ("interleaved", Shape(4, 8), "two or more chunks", r"chunks_per_rank=2; or use schedule one_f_one_b"),
        ("interleaved", Shape(4, 9, 2), "equal rounds", r"microbatches=8"),
        ("interleaved", Shape(4, 11, 2), "equal rounds", r"microbatches=12"),
        ("chimera", Shape(5, 8), "ranks is even", r"ranks=4, microbatches=8"),
        ("chimera", Shape(1, 1), "ranks is even", r"ranks=2, microbatches=2"),
        ("chimera", Shape(4, 6), "multiple of the ranks", r"ranks=4, microbatches=8"),
        ("chimera", Shape(4, 3), "even in number", r"ranks=4, microbatches=4"),
        ("chimera", Shape(4, 4, 2), "one chunk of each direction", r"chunks_per_rank=1"),
    ],
)
def test_a_shape_that_a_schedule_cannot_run_is_refused(name: str, shape: Shape, rule: str, way_out: str) -> None:
    with pytest.raises(PlanError, match=f"{rule}.*{shape}.*nearest that works: .*{way_out}"):
        SCHEDULES.get(name).check(shape)
