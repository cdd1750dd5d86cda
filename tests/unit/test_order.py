"""Actions and orders: their text and back, their columns, and every rule that `check` keeps."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import PlanError, ProgramError
from simulator.schedules import SCHEDULES, Action, PipelineOrder, Placement, Shape
from simulator.schedules.order import B, Cell, F, I, W, warm_up_then_pairs
from simulator.schedules.order_check import check_order

NUMBERS = st.integers(0, 2**31 - 128)
WHOLE = st.builds(Action, st.sampled_from("FBIW"), NUMBERS, NUMBERS)
GROUPS = st.builds(Action, st.just("F"), NUMBERS, NUMBERS, st.integers(2, 127))
PARTS = st.integers(2, 2**15 - 1).flatmap(
    lambda parts: st.builds(
        Action,
        st.sampled_from("FBIW"),
        NUMBERS,
        NUMBERS,
        part=st.integers(0, parts - 1),
        parts=st.just(parts),
        weight=st.none() | st.just(float(parts)) | st.floats(1e-9, 1e20).filter(lambda weight: weight != 1 / parts),
    )
)
ACTIONS = WHOLE | GROUPS | PARTS
PAIRS = st.tuples(
    st.builds(Action, st.just("F"), NUMBERS, NUMBERS), st.builds(Action, st.sampled_from("BI"), NUMBERS, NUMBERS)
)


@given(ACTIONS)
def test_an_action_is_its_text(action: Action) -> None:
    assert action == Action.parse(str(action))


@given(st.lists(st.lists(ACTIONS | PAIRS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_an_order_is_its_text_and_its_operations(ranks: list[list[Cell]]) -> None:
    order = PipelineOrder.from_actions(ranks)
    assert order == PipelineOrder.parse(order.to_text())
    assert ranks == [order.cells(rank) for rank in range(order.ranks)]
    flat = [[a for cell in cells for a in (cell if isinstance(cell, tuple) else (cell,))] for cells in ranks]
    assert flat == [order.rows(rank) for rank in range(order.ranks)]


@given(st.lists(WHOLE | PAIRS, min_size=1, max_size=5))
def test_torch_text_is_read_back(cells: list[Cell]) -> None:
    order = PipelineOrder.from_actions([cells])
    assert order == PipelineOrder.parse(order.to_text(torch=True))


@pytest.mark.parametrize("text", ["2F3+4", "2B3.1/2", "2F3@0.5"])
def test_what_torch_cannot_say_is_not_written_for_it(text: str) -> None:
    with pytest.raises(ProgramError, match=r"torch runs whole microbatches.*is a group, a part or weighted"):
        PipelineOrder.parse(text).to_text(torch=True)


def test_groups_parts_weights_and_pairs_have_columns() -> None:
    order = PipelineOrder.parse("0F0+1,(0F2;0B0.2/2),0B0.1/2@0.75\n(1F0;1I1)OVERLAP_F_B")
    assert [2, 1, 1, 1, 1, 1] == order.count.tolist()
    assert [0, 0, 1, 0, 0, 0] == order.part.tolist()
    assert [1, 1, 2, 2, 1, 1] == order.parts.tolist()
    assert [2, 1, 0.5, 0.75, 1, 1] == order.weight.tolist()
    assert [-1, 2, 1, -1, 5, 4] == order.pair.tolist()


def test_an_order_without_the_finer_columns_has_whole_microbatches() -> None:
    order = PipelineOrder([0, 2], [0, 1], [0, 0], [0, 0])  # type: ignore[arg-type]
    assert PipelineOrder.parse("0F0,0B0") == order
    assert ([1, 1], [0, 0], [1, 1], [1, 1], [-1, -1]) == tuple(
        getattr(order, name).tolist() for name in ("count", "part", "parts", "weight", "pair")
    )


@pytest.mark.parametrize(
    ("kind", "pair"), [([0, 1], [1, -1]), ([1, 0], [1, 0]), ([0, 3], [1, 0]), ([0, 1], [2, 0]), ([0, 1], [0, 1])]
)
def test_a_pair_that_is_no_forward_with_its_backward_behind_is_refused(kind: list[int], pair: list[int]) -> None:
    with pytest.raises(ProgramError, match="a fused pair is a forward and the backward right behind it"):
        PipelineOrder([0, 2], kind, [0, 0], [0, 1], pair=pair)  # type: ignore[arg-type]


def test_a_pair_does_not_reach_over_ranks() -> None:
    with pytest.raises(ProgramError, match="on one rank"):
        PipelineOrder([0, 1, 2], [0, 1], [0, 1], [0, 1], pair=[1, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"count": 0}, "covers 1..127"),
        ({"count": 128}, "covers 1..127"),
        ({"part": 2, "parts": 2}, "part 2 of 2"),
        ({"part": -1}, "part -1 of 1"),
        ({"parts": 0}, "part 0 of 0"),
        ({"count": 2, "parts": 2}, "not both"),
        ({"weight": 0.0}, "above 0"),
        ({"weight": float("nan")}, "above 0"),
        ({"weight": float("inf")}, "above 0"),
    ],
)
def test_an_action_that_cannot_be_is_refused(more: dict, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        Action("F", 0, 0, **more)


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
        ("0F0,(0F1;3B0", "line 1, cell 2: .*a fused pair"),
        ("(3B0;0F1)", "a forward and then a backward"),
        ("(0F1;3W0)OVERLAP_F_B", "a forward and then a backward"),
        ("(0F1;1F0;3B0)", "a fused pair"),
        ("(0F1)", "a fused pair"),
        ("0F0,(0F1;x)", "line 1, cell 2: .*'x'"),
        ("2F3+5", "follow each other"),
        ("2F3+", "follow each other"),
        ("2F2147483647+2147483648", "numbers up to"),
        ("2B3.0/2", "counted from 1"),
        ("2B3.3/2", "part 2 of 2; in text it is counted from 1"),
        ("2B3.1", "counted from 1"),
        ("2B3.1/99999", "n up to"),
        ("2B3+4.1/2", "not both"),
        ("2B3@0", "above 0"),
        ("2B3@-1", "a weight is a number above 0"),
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
    check_order(PipelineOrder.parse(GOOD), Placement.linear(Shape(2, 2)), 2)


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
        check_order(PipelineOrder.parse(GOOD.replace(old, new, 1)), Placement.linear(Shape(2, 2)), 2)


PARTLY = "0F0+1,0B0.2/2,0B0.1/2,0I1.1/2,0I1.2/2,0W1.1/2,0W1.2/2\n1F0.1/2,1F0.2/2,1B0.2/2,1B0.1/2,1F1,1B1"
"""Two ranks, two microbatches: groups, halves, slices from the last, halves of I and W."""


def test_a_good_order_of_groups_and_parts_passes() -> None:
    check_order(PipelineOrder.parse(PARTLY), Placement.linear(Shape(2, 2)), 2)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("0F0+1", "0F0", "0F1 is missing"),
        ("0F0+1", "0F0+1,0F1", r"0F1 stands twice|0F0\+1 stands twice"),
        ("0F0+1", "0F1+2", "drop it, or give the step 3 microbatches"),
        (",0B0.1/2", "", "0B0.1/2 is missing"),
        ("0B0.1/2", "0B0.2/2", "0B0.2/2 stands twice"),
        ("0B0.1/2", "0B0.1/3", "parts of a microbatch agree"),
        ("0F0+1,0B0.2/2", "0B0.2/2,0F0+1", "0F0 is too early"),
        ("1F0.2/2,1B0.2/2", "1B0.2/2,1F0.2/2", "1F0.2/2 is too early"),
        ("0I1.2/2,0W1.1/2,0W1.2/2", "0W1.2/2,0I1.2/2,0W1.1/2", "0W1.2/2 is too early"),
        ("0W1.1/2,0W1.2/2", "0W1", "I and W have the same parts"),
        ("0W1.1/2,0W1.2/2", "", "0W1 is missing"),
        ("0I1.1/2,0I1.2/2,", "", "I and then W|0I1. is missing"),
    ],
)
def test_check_keeps_the_rules_part_by_part(old: str, new: str, reason: str) -> None:
    assert old in PARTLY
    with pytest.raises(ProgramError, match=reason):
        check_order(PipelineOrder.parse(PARTLY.replace(old, new, 1)), Placement.linear(Shape(2, 2)), 2)


def test_check_wants_every_microbatch_of_a_group_on_the_lane() -> None:
    order = PipelineOrder.parse("0F0+1,1B1,0B0\n1F0+1,1B0,0B1")
    with pytest.raises(ProgramError, match=r"0F0\+1 stands on rank 0, but its lane has chunk 0 on rank 1"):
        check_order(order, Placement.bidirectional(Shape(2, 2), [0, 1]), 2)


@pytest.mark.parametrize("more", [{"count": [2, 2], "parts": [2, 2]}, {"part": [1, 1]}, {"weight": [0.0, 1.0]}])
def test_check_wants_columns_that_make_sense(more: dict) -> None:
    order = PipelineOrder([0, 2], [0, 1], [0, 0], [0, 0], **more)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="action 0 on rank 0 has count"):
        check_order(order, Placement.linear(Shape(1, 3)), 3)


def test_check_wants_the_lane_that_the_microbatch_takes() -> None:
    chimera = SCHEDULES.get("chimera")
    order = chimera.order(Shape(2, 2), chimera.placement(Shape(2, 2)))
    check_order(order, Placement.bidirectional(Shape(2, 2), [0, 1]), 2)
    with pytest.raises(ProgramError, match="its lane has chunk 0 on rank 1"):
        check_order(order, Placement.bidirectional(Shape(2, 2), [1, 0]), 2)


def test_check_wants_the_microbatches_of_the_step() -> None:
    with pytest.raises(ProgramError, match="2 microbatches, the step 3"):
        check_order(PipelineOrder.parse(GOOD), Placement.linear(Shape(2, 2)), 3)


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
    offsets = columns[0]
    said = re.escape(f"offsets {offsets[:4]}..{offsets[-1:]};")
    with pytest.raises(ProgramError, match=f"columns of one length .* {said}"):
        PipelineOrder(*columns)


def test_a_number_that_does_not_fit_is_refused_and_not_wrapped() -> None:
    with pytest.raises(ProgramError, match=r"kind of an order holds whole numbers: \[257\] do not fit in int8"):
        PipelineOrder([0, 2], np.array([0, 257]), [0, 0], [0, 0])  # type: ignore[arg-type]


def test_a_kind_that_is_none_is_refused() -> None:
    order = PipelineOrder([0, 2], [0, 4], [0, 0], [0, 0])  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"kind lies in 0\.\.3"):
        check_order(order, Placement.linear(Shape(1, 1)), 1)


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
        ("chimera", Shape(4, 1), "each of the 2 pipelines has a microbatch", r"ranks=4, microbatches=2"),
        ("bitpipe", Shape(4, 6, 2), "multiple of them", r"ranks=4, microbatches=8"),
        ("chimera_4", Shape(6, 6), "multiple of the 4 pipelines", "ranks=4, microbatches=6"),
        ("chimera_4", Shape(8, 3), "each of the 4 pipelines has a microbatch", "ranks=8, microbatches=4"),
        ("chimera_doubling", Shape(4, 7), "forwards take 2 microbatches", "ranks=4, microbatches=8"),
        ("chimera_doubling", Shape(4, 2), "pipelines has 2 microbatches", "ranks=4, microbatches=4"),
        ("gems", Shape(4, 7), "half of the microbatches", "ranks=4, microbatches=8"),
        ("gems", Shape(1, 4), "two or more ranks", "ranks=2, microbatches=4"),
        ("zbv", Shape(4, 8, 3), "two chunks", "chunks_per_rank=2"),
        ("dualpipe", Shape(5, 20), "ranks is even", "ranks=6, microbatches=20"),
        ("dualpipe", Shape(4, 6), "at least twice the ranks", "microbatches=8"),
        ("dualpipe", Shape(4, 9), "microbatches are even", "microbatches=10"),
        (
            "dualpipev",
            Shape(4, 7, 2),
            "at least twice the ranks",
            "microbatches=8, chunks_per_rank=2; or use schedule zbv",
        ),
        ("hanayo", Shape(4, 8, 3), "two chunks per wave", "chunks_per_rank=4"),
        ("seq1f1b", Shape(4, 8), "two or more slices", "chunks_per_rank=2"),
        ("breadth_first", Shape(4, 8), "two or more chunks", "chunks_per_rank=2; or use schedule gpipe"),
        ("zb_interleaved", Shape(4, 8), "two or more chunks", "chunks_per_rank=2; or use schedule zb_h1"),
        ("chimera", Shape(4, 4, 2), "one chunk of each direction", r"chunks_per_rank=1"),
    ],
)
def test_a_shape_that_a_schedule_cannot_run_is_refused(name: str, shape: Shape, rule: str, way_out: str) -> None:
    with pytest.raises(PlanError, match=f"{rule}.*{shape}.*nearest that works: .*{way_out}"):
        SCHEDULES.get(name).check(shape)
