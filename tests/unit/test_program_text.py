"""The text form: what it looks like, that it keeps everything, and what it refuses."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ProgramError
from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.calls import Product
from simulator.program.program import (
    COLLECTIVE,
    COPY,
    Block,
    FusedSegment,
    Link,
    OperatorTable,
    Program,
    Segment,
    Tensor,
)
from simulator.program.text import parse_text, render_text

EXAMPLE = (Path(__file__).parents[1] / "data" / "two_ranks.program").read_text(encoding="utf-8")


def operators() -> OperatorTable:
    """Two operators with every column in use."""
    return OperatorTable(
        name='layer "0"',
        label=("qkv", "all_reduce # 1"),
        kind=np.array([0, COLLECTIVE], np.int8),
        work=("gemm", "all_reduce"),
        shape=np.array([[1, 4096, 6144, 2048], [0, 0, 0, 0]]),
        call=(Product("TN"), None),
        dtype=("bf16", "bf16"),
        flops=np.array([1.03e11, 0.0]),
        read=np.array([0.1, 0.0]),
        written=np.array([2.0**21, 0.0]),
        message=np.array([0.0, 2.0**24 + 1]),
        group=((), ("tp", "cp")),
        phase=("forward", "recompute"),
        launches=np.array([1, 0]),
        part=("", "input"),
        beside=np.array([-1, 0], np.int32),
        captured=np.array([0, 2], np.int8),
    )


def full_program() -> Program:
    """A program that uses every column and every kind of item."""
    build = ProgramBuilder('odd "name" # 1', axes=[("tp", 2), ("pp", 2)], framework="megatron lm")
    first, second = build.add_stream(build.add_rank(1.5)), build.add_stream(build.add_rank(3))
    out, into, copy = build.add_stream(0, "pp>1"), build.add_stream(1, "pp<0"), build.add_stream(1, "copy")
    table = operators()
    segment = Segment(name="layers", pieces=((table, 12), (table, 1)), phase="forward", synchronises=True)
    loose = Segment(name="uncut", pieces=((table, 13),), phase="forward")
    compute, send = build.add_item(segment), build.add_item(transfer_link("act", 0, 1, message=12345))
    reduce = build.add_item(collective_link("norm\u2028", "all_reduce", [0, 1], message=0.25, group=("pp",)))
    move = build.add_item(
        Link(name="", kind=COPY, message=2.0**60, dtype="", group=(), pipeline_ranks=(), account="host memory")
    )
    effect = build.add_effect(Tensor(name="x", category="logits", bytes=2.0**20 * 3))
    build.add_effect()
    build.set_resident(1, Tensor(name="w", category="weights", bytes=1e15))
    build.add_row(compute, first, action=0, chunk=3, microbatch=1, lane=1, step=2, start_effect=effect)
    build.add_row(compute, first, action=0, chunk=3, microbatch=1, lane=1, step=2, part=1, end_effect=effect)
    build.add_row(send, (out, into), after=[1, 0], chunk=3, microbatch=1)
    build.add_row(reduce, (second, first), rank=0, after=[4])
    build.add_row(move, copy, mark_effect=effect)
    build.add_row(compute, second, action=4)
    pair = build.add_item(
        FusedSegment(name="pair", first=segment, second=Segment(name="b", pieces=(), phase="backward"))
    )
    build.add_row(pair, first, action=5, chunk=0, microbatch=4, second_chunk=3, second_microbatch=1, lane=1, step=2)
    build.add_row(compute, first, action=0, chunk=4, microbatch=0, count=3)
    build.add_row(compute, first, action=0, chunk=4, microbatch=5, slice=1, slices=2)
    build.add_row(compute, first, action=0, chunk=5, microbatch=5, slice=1, slices=2)
    block = Block(name="F", segments=(loose,)), Block(name="cut F", segments=(segment, segment))
    return build.build(blocks=block)


def test_text_is_what_people_read() -> None:
    assert EXAMPLE == render_text(parse_text(EXAMPLE))


def test_blank_lines_and_comments_mean_nothing() -> None:
    lines = [f"   {line}   # words" for line in EXAMPLE.splitlines()]
    assert EXAMPLE == render_text(parse_text("\n\n# top\r\n".join(["", *lines])))


def test_every_column_survives() -> None:
    program = full_program()
    again = parse_text(render_text(program))
    for field in fields(program):
        expected, actual = getattr(program, field.name), getattr(again, field.name)
        if isinstance(expected, np.ndarray):
            assert expected.dtype == actual.dtype, field.name
            assert expected.tolist() == actual.tolist(), field.name
        elif field.name not in ("items", "blocks"):
            assert expected == actual, field.name
    assert render_text(program) == render_text(again)


def test_operators_survive_and_are_shared() -> None:
    again = parse_text(render_text(full_program()))
    segment, loose = again.items[0], again.blocks[0].segments[0]
    assert isinstance(segment, Segment)
    assert again.blocks[1].segments == (segment, segment)
    assert segment.synchronises
    assert [12, 1] == [count for _, count in segment.pieces]
    assert segment.pieces[0][0] is segment.pieces[1][0] is loose.pieces[0][0]
    for field in fields(OperatorTable):
        expected, actual = getattr(operators(), field.name), getattr(segment.pieces[0][0], field.name)
        assert np.array_equal(expected, actual) if isinstance(expected, np.ndarray) else expected == actual, field.name


@given(st.text(), st.just(0.0) | st.floats(1e-30, 1e30), st.text())
def test_any_name_and_any_number_of_bytes_survive(name: str, size: float, dtype: str) -> None:
    build = ProgramBuilder(name)
    stream = build.add_stream(build.add_rank())
    build.add_row(build.add_item(replace(collective_link(name, "all_gather", [0], message=size), dtype=dtype)), stream)
    build.set_resident(0, Tensor(name=name, category="weights", bytes=size))
    again = parse_text(render_text(build.build()))
    assert name == again.name
    assert build.build().items == again.items
    assert size == again.resident[0].tensors[0].bytes


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('program "two ranks" axes=tp=8,pp=2\n', "", "line 1: the first line is: program \"name\", got 'rank'"),
        ("axes=tp=8,pp=2", "axes=tp", "line 1: axes are name=size"),
        ("rank 1 weight=8", "rank 2 weight=8", "line 3: ranks are numbered in order: the next one is 1, got 2"),
        ("rank 0 weight=8", "rank 0 weight=many", "line 2: weight is a number, got 'many'"),
        ("rank 0 weight=8", "rank 0 weight=8 weight=9", "line 2: weight is given once"),
        ("rank 0 weight=8", "rank 0", "line 2: weight=... is missing"),
        ("stream 0 0:compute", "stream 0 compute", "line 6: a stream is rank:lane"),
        ("stream 1 0:pp>1", "stream 1 0:compute", "line 7: a rank has one stream per lane"),
        ("stream 4 0:dp", "strema 4 0:dp", "line 10: a line begins with a row number or one of program, rank"),
        ("weights", "wieghts", "line 4: no memory category 'wieghts'; known: weights"),
        ('"layers" 64MiB', '"layers" 64', "line 4: expected a size with its unit"),
        ('"layers" 64MiB', "layers 64MiB", "line 4: name stands in double quotes, got 'layers'"),
        ('"layers" 64MiB', '"layers 64MiB', "line 4: words are parted by blanks"),
        ("1 transfer message", "2 transfer message", "line 18: rows are numbered in order: the next one is 1, got 2"),
        ("1 transfer message", "1 copy message", "line 18: the item is of kind transfer, the row says copy"),
        ("1 transfer message", "1 teleport message", "line 18: a kind is one of compute, transfer, collective, copy"),
        ("0 segment", '0 fused "x" first=0 second=1 second=1', "line 11: second is given once"),
        (
            '0 segment "forward of a layer" phase=forward',
            '0 fused "x" first=0 second=1',
            "line 11: a fused pair names two",
        ),
        ("item=0 start", "item=0 slices=40000 start", "line 17: slices lies in -1..32767, got 40000"),
        ("message=64MiB group=pp item", "message=32MiB group=pp item", "line 18: the row repeats its item"),
        ("item=1", "item=7", r"line 18: items are 0..2, got item 7"),
        ("on 0:pp>1", "on 0:pp>2", "line 18: no stream '0:pp>2'; known: 0:compute"),
        ("after 1 ", "after 1 soon ", r"line 19: nobody knows 'soon' here; allowed: item="),
        ("after 1 ", "after x ", "line 19: after is a whole number, got 'x'"),
        ("after 1 ", "after ", "line 19: 'after' needs a list"),
        ("step=1", "step=99999999999", r"line 20: step lies in -1..2147483647"),
        ("step=1", "hour=1", "line 20: nobody knows 'hour=1' here"),
        ("ranks=0,1", "ranks=0", "every member of a group takes part"),
        ("after 0,2", "after 9", r"after lies in 0..3, but is 9"),
        ("all_reduce message", "all_gather message", "line 20: the row repeats its item"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(ProgramError) as caught:
        parse_text(EXAMPLE.replace(old, new, 1))
    assert message in str(caught.value)


def test_an_empty_text_is_no_program() -> None:
    with pytest.raises(ProgramError, match="begins with the line"):
        parse_text("# nothing\n")


def test_pieces_of_a_segment_name_known_tables() -> None:
    with pytest.raises(ProgramError, match=r"line 11: pieces name tables 0\.\.-1, got 3"):
        parse_text(EXAMPLE.replace("phase=forward", "phase=forward pieces=1x3"))


def test_fused_segments_survive() -> None:
    program = full_program()
    items = parse_text(render_text(program)).items
    pair = items[-1]
    assert isinstance(pair, FusedSegment)
    assert pair.first is items[0]
    assert pair.second == program.items[-1].second  # type: ignore[union-attr]


def test_a_plain_segment_needs_no_pieces() -> None:
    assert 'item 0 segment "s" phase=backward\n' in render_text(_one(plain_segment("s", "backward")))


def _one(segment: Segment) -> Program:
    build = ProgramBuilder()
    build.add_row(build.add_item(segment), build.add_stream(build.add_rank()))
    return build.build()
