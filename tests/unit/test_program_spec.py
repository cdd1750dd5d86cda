"""Every rule of a program: the sound program passes, the broken one is named; and the ring behind a deadlock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import ProgramError
from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.program import TRANSFER, Effect, FusedSegment, Link, Program, Segment, Tensor
from simulator.program.spec import RULES, find_deadlock, verify
from simulator.program.text import parse_text

FORWARD, BACKWARD, INPUT, WEIGHT = range(4)


def pipeline() -> Program:
    """One microbatch forward and backward through two ranks, with memory, and a bucket over both."""
    build = ProgramBuilder("pipeline")
    for _ in range(2):
        build.add_stream(build.add_rank())
    out, into = build.add_stream(0, "pp>1"), build.add_stream(1, "pp<0")
    back, home = build.add_stream(1, "pp>0"), build.add_stream(0, "pp<1")
    lanes = [build.add_stream(rank, "dp") for rank in range(2)]
    layer, act = build.add_item(plain_segment("layer")), build.add_item(transfer_link("act", 0, 1, message=8))
    grad = build.add_item(transfer_link("grad", 1, 0, message=8))
    bucket = build.add_item(collective_link("bucket", "all_reduce", [0, 1], message=64))
    held = build.add_effect(Tensor(name="saved", category="activations", bytes=100.0))
    build.add_row(layer, 0, action=FORWARD, chunk=0, microbatch=0, start_effect=held)
    build.add_row(act, (out, into), after=[0])
    build.add_row(layer, 1, action=FORWARD, chunk=1, microbatch=0, after=[1], start_effect=held)
    build.add_row(layer, 1, action=BACKWARD, chunk=1, microbatch=0, end_effect=held)
    build.add_row(grad, (back, home), after=[3])
    build.add_row(layer, 0, action=BACKWARD, chunk=0, microbatch=0, after=[4], end_effect=held)
    build.add_row(bucket, lanes, after=[3, 5])
    return build.build()


def change(program: Program, column: str, row: int, value: int) -> Program:
    """Return the program with one entry of one column replaced."""
    array = getattr(program, column).copy()
    array[row] = value
    return replace(program, **{column: array})


def test_a_sound_program_passes_and_runs() -> None:
    verify(pipeline())
    assert find_deadlock(pipeline()) == ""


def test_a_program_without_rows_is_sound() -> None:
    verify(ProgramBuilder().build())


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("stream_offsets", 2, 0, "stream_offsets may not fall"),
        ("after_offsets", -1, 3, "after_offsets must run from 0 to the 6 entries"),
        ("item", 0, 9, r"item lies in 0..3, but is 9 at row 0"),
        ("item", 0, -1, r"item lies in 0..3, but is -1"),
        ("kind", 1, 2, "row 1 (act) on rank 0 is collective, its item is transfer"),
        ("action", 0, 6, "action lies in -1..5, but is 6"),
        ("rank", 0, 2, r"rank lies in 0..1, but is 2"),
        ("rank", 0, 1, "a row belongs to a rank whose stream it holds: row 0 (0F0) on rank 1 holds [0]"),
        ("streams", 1, 99, r"streams lies in 0..7, but is 99 at row 1 (act) on rank 0"),
        ("streams", 2, 2, "a row holds a stream once, but row 1 (act) on rank 0 names one twice"),
        ("streams", 2, 5, "holds streams of ranks [0], but its item names pipeline ranks [0, 1]"),
        ("after", 0, 7, r"after lies in 0..6, but is 7 at row 1"),
        ("after", 1, 2, "a row cannot wait for itself: row 2 (1F0) on rank 1"),
        ("stream_rank", 0, 4, r"stream_rank lies in 0..1, but is 4 at stream 0"),
        ("rank_weight", 1, 0, "a rank stands for one or more real ranks, but rank 1 has 0"),
        ("start_effect", 0, 1, r"start_effect lies in -1..0, but is 1"),
        ("start_effect", 3, 0, "what a step allocates it frees: rank 1 keeps 100 bytes of activations"),
        ("end_effect", 3, -1, "what a step allocates it frees: rank 1 keeps 100 bytes of activations"),
        ("microbatch", 3, 1, "a backward needs its forward; there is none of this microbatch: row 3 (1B1) on rank 1"),
        ("action", 3, FORWARD, "an action runs once per chunk, microbatch, lane and step, but is there twice"),
        ("action", 3, WEIGHT, "a weight gradient (W) needs an input gradient (I) before it"),
        ("action", 3, INPUT, "an input gradient (I) needs a weight gradient (W) after it"),
        ("chunk", 3, 0, "an action runs once per chunk"),
    ],
)
def test_a_broken_rule_is_named(column: str, row: int, value: int, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        verify(change(pipeline(), column, row, value))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lane": np.zeros(3, np.int8)}, "every column has one entry per row: lane has 3 for 7 rows"),
        ({"mark_effect": np.zeros(3, np.int32)}, "mark_effect has 3"),
        ({"stream_lane": ("compute",)}, "8 streams have 1 lanes"),
        ({"stream_lane": ("dp", *pipeline().stream_lane[1:])}, "one stream per lane, but 0:dp occurs twice"),
        ({"stream_lane": ("a lane", *pipeline().stream_lane[1:])}, "a lane is a word"),
        ({"resident": (Effect(),)}, "resident has one entry per rank or none, but 1 for 2"),
        (
            {"effects": (Effect(tensors=(Tensor(name="x", category="logits", bytes=-1.0),)),)},
            "not negative: see effect 0",
        ),
    ],
)
def test_a_broken_shape_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        verify(replace(pipeline(), **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize("message", [-1.0, np.inf, np.nan])
def test_messages_are_finite(message: float) -> None:
    program = pipeline()
    items = (*program.items[:3], collective_link("bucket", "all_reduce", [0, 1], message=message))
    with pytest.raises(ProgramError, match="a message is finite and not negative: 'bucket'"):
        verify(replace(program, items=items))


def test_only_a_transfer_blocks() -> None:
    program = pipeline()
    items = (*program.items[:3], replace(collective_link("bucket", "all_reduce", [0, 1]), blocks=True))
    with pytest.raises(ProgramError, match="only a transfer blocks: 'bucket'"):
        verify(replace(program, items=items))


def test_a_link_touches_ranks_that_exist() -> None:
    program = pipeline()
    items = (*program.items[:3], collective_link("bucket", "all_reduce", [0, 1, 2]))
    with pytest.raises(ProgramError, match=r"pipeline_ranks lie in 0\.\.1, but item 3 \(bucket\) has \[0, 1, 2\]"):
        verify(replace(program, items=items))


def test_a_row_over_three_ranks_needs_all_of_them() -> None:
    build = ProgramBuilder()
    streams = [build.add_stream(build.add_rank(), "dp") for _ in range(3)]
    norm = build.add_item(collective_link("norm", "all_reduce", [0, 1, 2]))
    build.add_row(norm, streams)
    verify(build.build())
    build.add_row(norm, streams[:2])
    with pytest.raises(ProgramError, match=r"row 1 \(norm\) on rank 0 holds streams of ranks \[0, 1\]"):
        verify(build.build())


def split(order: str, parts: tuple[int, ...] = (0, 0, 0)) -> Program:
    """Rows of one microbatch on one rank, in the given order of actions."""
    build = ProgramBuilder()
    stream, layer = build.add_stream(build.add_rank()), build.add_item(plain_segment("layer"))
    for letter, part in zip(order, parts, strict=True):
        build.add_row(layer, stream, action="FBIW".index(letter), chunk=0, microbatch=0, part=part)
    return build.build()


def test_a_split_backward_and_a_cut_block_are_sound() -> None:
    verify(split("FIW"))
    verify(split("FFB", (0, 1, 0)))
    verify(split("FBB", (0, 0, 1)))


@pytest.mark.parametrize(
    ("order", "parts", "message"),
    [
        ("BF", (0, 0), "a forward comes before its backward"),
        ("IFW", (0, 0, 0), "a forward comes before its input gradient"),
        ("FWI", (0, 0, 0), "an input gradient comes before its weight gradient"),
        ("FBF", (0, 0, 1), "a forward comes before its backward"),
        ("FBIW", (0, 0, 0, 0), "whole .B. or split"),
        ("FFB", (0, 0, 0), "is there twice: row 0"),
        ("FBB", (0, 1, 1), "is there twice: row 1"),
    ],
)
def test_actions_out_of_order_are_named(order: str, parts: tuple[int, ...], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        verify(split(order, parts))


def test_forward_and_backward_are_on_one_rank() -> None:
    build = ProgramBuilder()
    streams = [build.add_stream(build.add_rank()) for _ in range(2)]
    layer = build.add_item(plain_segment("layer"))
    for stream, action in zip(streams, (FORWARD, BACKWARD), strict=True):
        build.add_row(layer, stream, action=action, chunk=0, microbatch=0)
    with pytest.raises(ProgramError, match="all actions of a microbatch on a chunk are on one rank"):
        verify(build.build())


def test_microbatches_of_other_steps_and_lanes_are_told_apart() -> None:
    build = ProgramBuilder()
    stream, layer = build.add_stream(build.add_rank()), build.add_item(plain_segment("layer"))
    for step, lane in ((0, 0), (1, 0), (0, 1), (10**6, 1)):
        for action in (FORWARD, BACKWARD):
            build.add_row(layer, stream, action=action, chunk=10**6, microbatch=10**6 * lane, lane=lane, step=step)
    verify(build.build())


def special(*rows: dict[str, int], fused: bool = False) -> Program:
    """Rows of one rank that run these actions."""
    build = ProgramBuilder()
    stream, layer = build.add_stream(build.add_rank()), plain_segment("layer")
    plain, pair = build.add_item(layer), build.add_item(FusedSegment(name="pair", first=layer, second=layer))
    for row in rows:
        build.add_row(pair if fused or row["action"] == 5 else plain, stream, **({"chunk": 0} | row))
    return build.build()


def test_actions_of_several_microbatches_and_of_slices_are_sound() -> None:
    verify(special({"action": FORWARD, "microbatch": 0, "count": 2}, {"action": BACKWARD, "microbatch": 0, "count": 2}))
    halves = [{"microbatch": 3, "slice": half, "slices": 2} for half in (0, 1)]
    verify(special(*({"action": FORWARD} | half for half in halves), {"action": BACKWARD, "microbatch": 3}))
    verify(special({"action": FORWARD, "microbatch": 3}, *({"action": BACKWARD} | half for half in reversed(halves))))
    verify(special(*({"action": FORWARD, "microbatch": m} for m in (0, 1)), {"action": 1, "microbatch": 0, "count": 2}))


def test_a_fused_pair_is_a_forward_and_a_backward() -> None:
    first, last = {"action": FORWARD, "microbatch": 0}, {"action": BACKWARD, "microbatch": 1}
    pair = {"action": 5, "microbatch": 1, "second_chunk": 0, "second_microbatch": 0}
    verify(special(first, pair, last))
    verify(special(first, pair, {"action": WEIGHT, "microbatch": 0}, last))
    verify(special(first | {"lane": 1}, pair, last))
    with pytest.raises(ProgramError, match=r"a backward needs its forward.*row 0 \(\(0F1;0B0\)\)"):
        verify(special(pair, last))
    with pytest.raises(ProgramError, match="is there twice"):
        verify(special(first, pair, {"action": BACKWARD, "microbatch": 0}, last))
    with pytest.raises(ProgramError, match="a forward comes before its backward"):
        verify(special(first, last, pair))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"action": FORWARD, "microbatch": 0, "count": 0}], "an action covers one or more microbatches"),
        ([{"action": FORWARD, "microbatch": 0, "slice": 2, "slices": 2}], "slice lies in 0..slices - 1"),
        ([{"action": FORWARD, "microbatch": 0, "slices": 2, "count": 2}], "a slice of a microbatch or whole ones"),
        ([{"action": 5, "microbatch": 0, "second_chunk": 1}], "names a second chunk and microbatch"),
        ([{"action": 5, "microbatch": 0}], "names a second chunk and microbatch"),
        ([{"action": FORWARD, "microbatch": 0, "second_chunk": 1}], "names a second chunk and microbatch"),
        (
            [{"action": FORWARD, "microbatch": 0, "count": 2}, {"action": FORWARD, "microbatch": 1}],
            "is there twice: row 0 (0F0+1)",
        ),
        (
            [{"action": FORWARD, "microbatch": 0, "slices": 2}, {"action": BACKWARD, "microbatch": 0}],
            "a backward needs its forward; there is none of this microbatch: row 1 (0B0)",
        ),
    ],
)
def test_special_actions_that_mean_nothing_are_named(rows: list[dict[str, int]], message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        verify(special(*rows))
    assert message in str(caught.value)


def test_a_fused_segment_is_run_by_pairs_only() -> None:
    with pytest.raises(ProgramError, match="runs a fused segment"):
        verify(
            special(
                {"action": FORWARD, "microbatch": 0},
                {"action": 5, "microbatch": 1, "second_chunk": 0, "second_microbatch": 0},
                fused=True,
            )
        )


def test_a_row_has_no_other_columns() -> None:
    with pytest.raises(ProgramError, match=r"a row has no \['hour'\]; allowed besides: count"):
        special({"action": FORWARD, "hour": 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("flops=-5 beside=-1 captured=0", "flops of operators is finite and not negative, one per row: see 't'"),
        ("flops=nan beside=-1 captured=0", "flops of operators is finite"),
        ("flops=5 beside=1 captured=0", "beside names a row of its own table or -1: see 't'"),
        ("flops=5 beside=-1 captured=3", "started by the host (0), a layer's graph (1) or a step's (2): see 't'"),
    ],
)
def test_segments_with_broken_operators_are_named(values: str, message: str) -> None:
    text = f"""program "p"
        rank 0 weight=1
        stream 0 0:compute
        table 0 "t"
        operator 0 "qkv" compute work=gemm shape=1,2,3,4 call=TN dtype=bf16 read=0B written=0B message=0B group=- \
        phase=forward launches=1 part=- {values}
        item 0 segment "layer" phase=forward pieces=1x0"""
    with pytest.raises(ProgramError) as caught:
        parse_text(text.replace("\\\n", ""))
    assert message in str(caught.value)


@pytest.mark.parametrize("size", [0, -2])
def test_an_axis_without_ranks_is_refused(size: int) -> None:
    with pytest.raises(ProgramError, match=f"a mesh axis has one or more ranks, but pp has {size}"):
        verify(replace(pipeline(), axes=(("tp", 2), ("pp", size))))


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len(RULES) == len({rule.__name__ for rule in RULES})


def ring(waits: dict[int, list[int]]) -> Program:
    """One forward per rank, waiting for others as given."""
    build = ProgramBuilder()
    layer = build.add_item(Segment(name="layer", pieces=(), phase="forward"))
    for rank in range(len(waits)):
        build.add_row(
            layer, build.add_stream(build.add_rank()), action=FORWARD, chunk=rank, microbatch=0, after=waits[rank]
        )
    return build.build()


def test_the_ring_is_told_without_the_rows_that_only_wait_for_it() -> None:
    told = find_deadlock(ring({0: [1], 1: [2], 2: [3], 3: [1]}))
    assert (
        "no row can start any more (4 of 4 rows are left). Rank 1 waits in 1F0 (row 1) for rank 2; "
        "rank 2 waits in 2F0 (row 2) for rank 3; rank 3 waits in 3F0 (row 3) for rank 1. "
        "Let one of these rows come earlier in the order of its rank."
    ) == told


def test_a_row_that_stands_behind_another_on_its_stream_says_so() -> None:
    build = ProgramBuilder()
    stream, layer = build.add_stream(build.add_rank()), build.add_item(plain_segment("layer"))
    build.add_row(layer, stream, after=[1])
    build.add_row(layer, stream)
    assert "its own row 0 (layer), behind row 0 on its stream" in find_deadlock(build.build())


def test_a_long_ring_is_shortened() -> None:
    told = find_deadlock(ring({rank: [(rank + 1) % 40] for rank in range(40)}))
    assert "... 28 more ..." in told
    assert len(told) < 1000


def test_a_transfer_has_two_ends() -> None:
    build = ProgramBuilder()
    stream = build.add_stream(build.add_rank())
    one_end = Link(
        name="act", kind=TRANSFER, message=1.0, dtype="bf16", group=("pp",), pipeline_ranks=(0,), account="pp"
    )
    build.add_row(build.add_item(one_end), stream)
    with pytest.raises(ProgramError, match=r"from one pipeline rank to another: 'act' names \[0\]"):
        verify(build.build())
