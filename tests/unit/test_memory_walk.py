"""The memory walk: level, peak and what stands there, against hand-computed cases and a slow plain reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ProgramError
from simulator.program.builder import ProgramBuilder, plain_segment
from simulator.program.program import CATEGORIES, Effect, Program, Tensor
from simulator.program.trace import Trace
from simulator.report.memory import LiveTensors, memory_peaks, memory_timeline

ACTIVATIONS = CATEGORIES.index("activations")
WORKSPACE = CATEGORIES.index("workspace")


def trace_of(*edges: tuple[float, float]) -> Trace:
    return Trace(
        start=np.array([a for a, _ in edges], np.float64),
        end=np.array([b for _, b in edges], np.float64),
        engine="given",
    )


def forward_backward(microbatches: int = 2) -> tuple[Program, Trace]:
    """One rank: all forwards (1 s), then all backwards (2 s), each with 5 bytes of workspace; weights of 100 bytes."""
    build = ProgramBuilder()
    stream = build.add_stream(build.add_rank())
    layer = build.add_item(plain_segment("layer"))
    saved = build.add_effect(Tensor(name="saved", category="activations", bytes=10.0))
    temporary = build.add_effect(Tensor(name="scratch", category="workspace", bytes=5.0))
    build.set_resident(0, Tensor(name="weights", category="weights", bytes=100.0))
    for _ in range(microbatches):
        build.add_row(layer, stream, start_effect=saved, mark_effect=temporary)
    for _ in range(microbatches):
        build.add_row(layer, stream, end_effect=saved, mark_effect=temporary)
    m = microbatches
    return build.build(), trace_of(*[(i, i + 1) for i in range(m)], *[(m + 2 * i, m + 2 * i + 2) for i in range(m)])


def test_peak_counts_what_is_resident_held_and_temporary() -> None:
    program, trace = forward_backward(microbatches=2)
    report = memory_peaks(program, trace)
    assert [100.0 + 2 * 10.0 + 5.0] == report.total.tolist()
    assert [1.0] == report.time.tolist()
    assert (20.0, 5.0) == (report.by_category[0, ACTIVATIONS], report.by_category[0, WORKSPACE])


def test_peak_names_the_tensors_that_stand_there_largest_first() -> None:
    program, trace = forward_backward(microbatches=2)
    expected = (
        LiveTensors(name="weights", category="weights", count=1, bytes=100.0),
        LiveTensors(name="saved", category="activations", count=2, bytes=20.0),
        LiveTensors(name="scratch", category="workspace", count=1, bytes=5.0),
    )
    assert expected == memory_peaks(program, trace).live(0)


def test_timeline_rises_and_falls_back_to_what_is_resident() -> None:
    times, levels = memory_timeline(*forward_backward(microbatches=2), rank=0)
    assert [0.0, 1.0, 2.0, 4.0, 6.0] == times.tolist()
    assert [115.0, 125.0, 125.0, 115.0, 100.0] == levels.sum(axis=1).tolist()


def test_memory_freed_at_an_instant_can_be_used_again_at_it() -> None:
    build = ProgramBuilder()
    rank = build.add_rank()
    first, second = build.add_stream(rank), build.add_stream(rank, "dp")
    layer = build.add_item(plain_segment("layer"))
    buffer = build.add_effect(Tensor(name="buffer", category="communication", bytes=8.0))
    build.add_row(layer, first, start_effect=buffer, end_effect=buffer)
    build.add_row(layer, second, start_effect=buffer, end_effect=buffer)
    program = build.build()
    assert [8.0] == memory_peaks(program, trace_of((0, 1), (1, 2))).total.tolist()
    assert [16.0] == memory_peaks(program, trace_of((0, 1.5), (1, 2))).total.tolist()


def test_a_tensor_freed_in_two_halves_is_one_tensor_with_the_bytes_left() -> None:
    build = ProgramBuilder()
    stream = build.add_stream(build.add_rank())
    layer = build.add_item(plain_segment("layer"))
    whole = build.add_effect(Tensor(name="saved", category="activations", bytes=10.0))
    at_input = build.add_effect(Tensor(name="saved", category="activations", bytes=4.0))
    at_weight = build.add_effect(Tensor(name="saved", category="activations", bytes=6.0))
    logits = build.add_effect(Tensor(name="logits", category="logits", bytes=50.0))
    for effect in (whole, whole):
        build.add_row(layer, stream, start_effect=effect)
    build.add_row(layer, stream, end_effect=at_input)
    build.add_row(layer, stream, mark_effect=logits)
    build.add_row(layer, stream, end_effect=at_weight)
    report = memory_peaks(build.build(), trace_of((0, 1), (1, 2), (2, 3), (3, 4), (4, 5)))
    assert [3.0] == report.time.tolist()
    assert [LiveTensors(name="logits", category="logits", count=1, bytes=50.0), 2, 16.0] == [
        report.live(0)[0],
        report.live(0)[1].count,
        report.live(0)[1].bytes,
    ]


def test_a_window_sees_what_was_there_before_it() -> None:
    program, trace = forward_backward(microbatches=2)
    late = memory_peaks(program, trace, window=(5.0, 6.0))
    assert ([115.0], [5.0]) == (late.total.tolist(), late.time.tolist())


def test_allocated_leaves_out_context_and_fragmentation() -> None:
    build = ProgramBuilder()
    stream = build.add_stream(build.add_rank())
    build.add_row(build.add_item(plain_segment("layer")), stream)
    parts = [Tensor(name=name, category=name, bytes=2.0**i) for i, name in enumerate(CATEGORIES)]
    build.set_resident(0, *parts)
    report = memory_peaks(build.build(), trace_of((0, 1)))
    outside = sum(t.bytes for t in parts if t.category in ("context", "fragmentation"))
    assert [report.total[0] - outside] == report.allocated.tolist()


def test_an_effect_on_a_rank_whose_streams_the_row_does_not_hold_is_refused() -> None:
    build = ProgramBuilder()
    stream, _ = build.add_stream(build.add_rank()), build.add_stream(build.add_rank())
    effect = build.add_effect(Tensor(name="x", category="activations", bytes=1.0))
    build.add_row(build.add_item(plain_segment("layer")), stream, rank=1, start_effect=effect)
    with pytest.raises(ProgramError, match=r"row 0 .* of rank 1"):
        memory_peaks(build.build(), trace_of((0, 1)))


@st.composite
def walks(draw: st.DrawFn) -> tuple[Program, Trace]:
    """Programs of 1-2 ranks with up to 3 streams each; edges on a coarse grid, so that many fall together."""
    build = ProgramBuilder()
    streams = [
        build.add_stream(rank, lane)
        for rank in [build.add_rank() for _ in range(draw(st.integers(1, 2)))]
        for lane in ("compute", "dp", "copy")[: draw(st.integers(1, 3))]
    ]
    layer = build.add_item(plain_segment("layer"))
    size = st.integers(1, 9).map(float)
    category = st.sampled_from(("activations", "workspace", "gathered"))
    for _ in range(4):
        build.add_effect(Tensor(name="t", category=draw(category), bytes=draw(size)))
    build.set_resident(0, Tensor(name="w", category="weights", bytes=draw(size)))
    free = dict.fromkeys(streams, 0.0)
    edges = []
    effect = st.integers(-1, 3)
    for _ in range(draw(st.integers(1, 12))):
        stream = draw(st.sampled_from(streams))
        start = free[stream] + draw(st.integers(0, 2))
        free[stream] = start + draw(st.integers(0, 2))
        edges.append((start, free[stream]))
        held = draw(effect)
        build.add_row(
            layer, stream, start_effect=held, end_effect=draw(st.sampled_from((-1, held))), mark_effect=draw(effect)
        )
    return build.build(), trace_of(*edges)


def level(program: Program, trace: Trace, rank: int, now: float) -> np.ndarray:
    """The definition, row by row."""
    out = program.resident[rank].by_category()
    for row in np.flatnonzero(program.rank == rank):
        started, ended = trace.start[row] <= now, trace.end[row] <= now
        for number, sign in (
            (program.start_effect[row], int(started)),
            (program.mark_effect[row], int(started and not ended)),
            (program.end_effect[row], -int(ended)),
        ):
            if number >= 0:
                out = out + sign * program.effects[number].by_category()
    return out


@settings(max_examples=60, deadline=None)
@given(walks())
def test_walk_agrees_with_the_definition_at_every_instant(walk: tuple[Program, Trace]) -> None:
    program, trace = walk
    report = memory_peaks(program, trace)
    moments = sorted({0.0, *trace.start.tolist(), *trace.end.tolist()})
    for rank in range(program.ranks):
        levels = {now: level(program, trace, rank, now) for now in moments}
        peak = max(float(table.sum()) for table in levels.values())
        first = min(now for now in moments if levels[now].sum() == peak)
        assert (peak, first) == (report.total[rank], report.time[rank])
        assert levels[first].tolist() == report.by_category[rank].tolist()
        assert peak == sum(line.bytes for line in report.live(rank))
        times, table = memory_timeline(program, trace, rank)
        for now, at in zip(times, table, strict=True):
            assert levels[now].tolist() == at.tolist()


def with_idle_memory(idle: float) -> tuple[Program, Trace]:
    """The program above with freed memory that the allocator keeps."""
    program, trace = forward_backward(microbatches=2)
    kept = Effect(tensors=(*program.resident[0].tensors, Tensor(name="idle", category="fragmentation", bytes=idle)))
    return replace(program, resident=(kept,)), trace


def test_freed_memory_is_given_back_as_far_as_others_need_it() -> None:
    """125 bytes are in use at the peak: of 50 idle ones all stand, 15 or none, as the device has room."""
    program, trace = with_idle_memory(50.0)
    for capacity, expected in ((1000.0, 175.0), (140.0, 140.0), (120.0, 125.0)):
        report = memory_peaks(program, trace, capacity=capacity)
        assert [expected] == report.total.tolist()
        assert expected == pytest.approx(sum(line.bytes for line in report.live(0)))
        assert [125.0] == report.allocated.tolist()
