"""The breakdown: every instant of a rank's compute stream in exactly one account."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import run
from simulator.errors import ProgramError
from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.prices import ACCOUNTS, Prices
from simulator.program.program import Program
from simulator.program.trace import Trace
from simulator.report.breakdown import breakdown, exposed_communication, mean_breakdown


def plain(*times: tuple[float, float]) -> Prices:
    """Prices from (occupancy, latency) of each item."""
    return Prices.plain(np.array([a for a, _ in times]), np.array([b for _, b in times]))


def shown(program: Program, prices: Prices, trace: Trace, rank: int, **options: tuple[float, float]) -> dict[str, Any]:
    """The accounts of a rank that are not zero."""
    row = breakdown(program, prices, trace, **options)[rank]
    return {name: pytest.approx(float(value)) for name, value in zip(ACCOUNTS, row, strict=True) if value}


def two_ranks() -> ProgramBuilder:
    """Streams: 0, 1 compute; 2, 3 a channel from rank 0 to rank 1; 4, 5 dp."""
    build = ProgramBuilder()
    for rank in (build.add_rank(), build.add_rank()):
        build.add_stream(rank)
    build.add_stream(0, "pp>1"), build.add_stream(1, "pp<0")
    build.add_stream(0, "dp"), build.add_stream(1, "dp")
    return build


def test_time_of_a_message_in_flight_is_pp_and_the_wait_before_it_bubble() -> None:
    build = two_ranks()
    forward, send = build.add_item(plain_segment("f")), build.add_item(transfer_link("act", 0, 1))
    sent = build.add_row(send, (2, 3), after=[build.add_row(forward, 0)])
    build.add_row(forward, 1, after=[sent])
    program, prices = build.build(), plain((3.0, 0.0), (0.5, 0.25))
    trace = run(program, prices)
    assert {"forward": 3.0, "pp": 0.75, "bubble": 3.0} == shown(program, prices, trace, rank=1)
    assert {"forward": 3.0, "pp": 0.5, "bubble": 3.25} == shown(program, prices, trace, rank=0)


def test_only_the_exposed_part_of_a_gather_is_dp() -> None:
    build = ProgramBuilder()
    rank = build.add_rank()
    compute, lane = build.add_stream(rank), build.add_stream(rank, "dp")
    layer = build.add_item(plain_segment("f"))
    gather = build.add_item(collective_link("unit", "all_gather", [0]))
    first = build.add_row(layer, compute)
    gathered = build.add_row(gather, lane)
    build.add_row(layer, compute, after=[first, gathered])
    program, prices = build.build(), plain((2.0, 0.0), (5.0, 0.0))
    assert {"forward": 4.0, "dp": 3.0} == shown(program, prices, run(program, prices), rank=0)


def test_a_gather_that_queues_behind_other_collectives_is_still_dp() -> None:
    build = ProgramBuilder()
    rank = build.add_rank()
    compute, lane = build.add_stream(rank), build.add_stream(rank, "dp")
    layer = build.add_item(plain_segment("f"))
    gather = build.add_item(collective_link("unit", "all_gather", [0]))
    gathers = [build.add_row(gather, lane) for _ in range(3)]
    build.add_row(layer, compute, after=gathers)
    program, prices = build.build(), plain((2.0, 0.0), (5.0, 0.0))
    assert {"forward": 2.0, "dp": 15.0} == shown(program, prices, run(program, prices), rank=0)


def test_a_rendezvous_waits_in_the_bubble_for_the_slower_rank() -> None:
    build = two_ranks()
    short, long = build.add_item(plain_segment("f")), build.add_item(plain_segment("f"))
    norm = build.add_item(collective_link("norm", "all_reduce", [0, 1], group=("pp",)))
    update = build.add_item(plain_segment("u", "optimizer"))
    meet = build.add_row(norm, (4, 5), after=[build.add_row(short, 0), build.add_row(long, 1)])
    for stream in (0, 1):
        build.add_row(update, stream, after=[meet])
    program, prices = build.build(), plain((1.0, 0.0), (4.0, 0.0), (0.5, 0.0), (2.0, 0.0))
    trace = run(program, prices)
    assert {"forward": 1.0, "bubble": 3.0, "dp": 0.5, "optimizer": 2.0} == shown(program, prices, trace, rank=0)
    assert {"forward": 4.0, "dp": 0.5, "optimizer": 2.0} == shown(program, prices, trace, rank=1)


def test_a_segment_is_split_as_priced_also_when_it_was_slowed() -> None:
    build = ProgramBuilder()
    build.add_row(build.add_item(plain_segment("b", "backward")), build.add_stream(build.add_rank()))
    account = np.zeros((1, len(ACCOUNTS)))
    account[0, [ACCOUNTS.index(name) for name in ("backward", "recompute", "tp")]] = 2.0, 1.0, 1.0
    prices = dataclasses.replace(plain((4.0, 0.0)), account=account)
    trace = Trace(start=np.zeros(1), end=np.full(1, 6.0), engine="given")
    assert {"backward": 3.0, "recompute": 1.5, "tp": 1.5} == shown(build.build(), prices, trace, rank=0)


def test_after_its_last_row_a_rank_waits_for_the_link_that_ends_last() -> None:
    build = two_ranks()
    layer, late = build.add_item(plain_segment("f")), build.add_item(plain_segment("f"))
    reduce = build.add_item(collective_link("bucket", "all_reduce", [0]))
    send = build.add_item(transfer_link("act", 0, 1))
    done = build.add_row(layer, 0)
    build.add_row(reduce, 4, after=[done])
    build.add_row(send, (2, 3), after=[done])
    build.add_row(late, 1)
    program = build.build()
    for reducing, sending, expected in ((3.0, 5.0, {"pp": 5.0, "bubble": 3.0}), (5.0, 3.0, {"dp": 5.0, "bubble": 3.0})):
        prices = plain((1.0, 0.0), (9.0, 0.0), (reducing, 0.0), (sending, 0.0))
        assert {"forward": 1.0, **expected} == shown(program, prices, run(program, prices), rank=0)


def test_a_window_counts_only_what_lies_in_it() -> None:
    build = two_ranks()
    forward, send = build.add_item(plain_segment("f")), build.add_item(transfer_link("act", 0, 1))
    build.add_row(forward, 1, after=[build.add_row(send, (2, 3), after=[build.add_row(forward, 0)])])
    program, prices = build.build(), plain((3.0, 0.0), (1.0, 0.0))
    trace = run(program, prices)
    assert {"bubble": 1.0, "pp": 1.0, "forward": 2.0} == shown(program, prices, trace, rank=1, window=(2.0, 6.0))
    assert {"forward": 1.0, "pp": 1.0, "bubble": 2.0} == shown(program, prices, trace, rank=0, window=(2.0, 6.0))


def test_means_count_each_real_rank() -> None:
    build = ProgramBuilder()
    layer = build.add_item(plain_segment("f"))
    first, second = build.add_stream(build.add_rank(weight=3)), build.add_stream(build.add_rank(weight=1))
    build.add_row(layer, first)
    build.add_row(layer, second)
    build.add_row(layer, second)
    program, prices = build.build(), plain((1.0, 0.0))
    table = breakdown(program, prices, run(program, prices))
    mean = mean_breakdown(program, table)
    assert (1.25, 0.75) == (mean["forward"], mean["bubble"])
    assert {"tp": 0.0, "cp": 0.0, "ep": 0.0, "pp": 0.0, "dp": 0.0} == exposed_communication(program, table)


def test_a_link_without_an_account_is_refused() -> None:
    build = two_ranks()
    build.add_row(build.add_item(collective_link("norm", "all_reduce", [0], account="nobody")), 4)
    with pytest.raises(ProgramError, match="'norm' names 'nobody'"):
        breakdown(build.build(), plain((1.0, 0.0)), Trace(start=np.zeros(1), end=np.ones(1), engine="given"))


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, Prices]:
    """Any rows on two ranks, each after some earlier ones."""
    build = two_ranks()
    items = [
        (build.add_item(plain_segment("f")), ((0,), (1,))),
        (build.add_item(plain_segment("b", "backward")), ((0,), (1,))),
        (build.add_item(transfer_link("act", 0, 1)), ((2, 3),)),
        (build.add_item(collective_link("norm", "all_reduce", [0, 1], account="tp")), ((4, 5),)),
        (build.add_item(collective_link("bucket", "all_reduce", [0])), ((4,), (5,))),
    ]
    for row in range(draw(st.integers(1, 14))):
        item, places = draw(st.sampled_from(items))
        after = draw(st.sets(st.integers(0, row - 1), max_size=3)) if row else ()
        build.add_row(item, draw(st.sampled_from(places)), after=sorted(after))
    seconds = st.floats(0.0, 3.0)
    return build.build(), plain(*[(draw(seconds), draw(seconds) if i >= 2 else 0.0) for i in range(len(items))])


@settings(max_examples=80, deadline=None)
@given(programs(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_accounts_sum_to_the_step_and_windows_add_up(made: tuple[Program, Prices], a: float, b: float) -> None:
    program, prices = made
    trace = run(program, prices)
    whole = breakdown(program, prices, trace)
    assert (whole >= 0.0).all()
    np.testing.assert_allclose(np.full(2, trace.makespan), whole.sum(axis=1), rtol=1e-9, atol=1e-9)
    cuts = [0.0, *sorted((a * trace.makespan, b * trace.makespan)), trace.makespan]
    parts = [breakdown(program, prices, trace, window=(low, high)) for low, high in pairwise(cuts)]
    np.testing.assert_allclose(whole, sum(parts), rtol=1e-9, atol=1e-9)
    busy = sum(float(trace.end[i] - trace.start[i]) for i in np.flatnonzero(program.kind == 0))
    assert busy == pytest.approx(whole[:, [ACCOUNTS.index("forward"), ACCOUNTS.index("backward")]].sum())
