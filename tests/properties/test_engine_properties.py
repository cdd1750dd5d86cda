"""What holds for every program, whatever it is."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "differential"))

from random_programs import programs, random_prices

from simulator.engine import run
from simulator.program.critical import critical_path
from simulator.program.program import Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=80, deadline=None)


@MANY
@given(program=programs(), seed=SEEDS, interferes=st.booleans())
def test_no_step_is_shorter_than_its_busiest_stream(program: Program, seed: int, interferes: bool) -> None:
    prices = random_prices(program, seed, interferes)
    busy = np.bincount(
        program.streams,
        weights=prices.occupancy[program.item[program.row_of_stream_entry]],
        minlength=len(program.stream_rank),
    )
    assert run(program, prices).makespan >= busy.max() * (1 - 1e-12)


@MANY
@given(program=programs(), seed=SEEDS)
def test_the_critical_path_is_a_chain_that_explains_the_makespan(program: Program, seed: int) -> None:
    prices = random_prices(program, seed)
    trace = run(program, prices)
    path = critical_path(program, prices, trace)
    if program.size == 0:
        assert len(path) == 0
        return
    assert trace.end[path[-1]] == trace.makespan
    assert trace.start[path[0]] == 0.0
    for row, following in itertools.pairwise(path):
        waits = set(program.after[program.after_offsets[following] : program.after_offsets[following + 1]].tolist())
        seen = [trace.end[row] + prices.latency[program.item[row]]] if int(row) in waits else []
        both = program.row_of_stream_entry
        shares = set(program.streams[both == row].tolist()) & set(program.streams[both == following].tolist())
        assert trace.start[following] in seen + ([trace.end[row]] if shares else [])


@MANY
@given(program=programs(), seed=SEEDS)
def test_the_critical_path_with_interference_ends_last_and_starts_at_zero(program: Program, seed: int) -> None:
    prices = random_prices(program, seed, interferes=True)
    trace = run(program, prices)
    path = critical_path(program, prices, trace)
    if program.size:
        assert trace.end[path[-1]] == trace.makespan
        assert trace.start[path[0]] == 0.0
        assert (np.diff(trace.start[path]) >= 0.0).all()


@MANY
@given(program=programs(), seed=SEEDS, faster=st.floats(0.0, 1.0), item=st.integers(0, 20))
def test_more_speed_is_never_slower(program: Program, seed: int, faster: float, item: int) -> None:
    prices = random_prices(program, seed)
    occupancy, latency = prices.occupancy.copy(), prices.latency.copy()
    occupancy[item % len(occupancy)] *= faster
    latency[(item + 1) % len(latency)] *= faster
    quick = run(program, replace(prices, occupancy=occupancy, latency=latency))
    assert (quick.end <= run(program, prices).end).all()


@MANY
@given(program=programs(), seed=SEEDS)
def test_interference_never_makes_a_step_without_waits_shorter(program: Program, seed: int) -> None:
    prices = random_prices(program, seed, interferes=True)
    alone = replace(prices, slowdown=np.ones_like(prices.slowdown))
    ran = run(program, prices)
    assert (ran.end - ran.start >= prices.occupancy[program.item] * (1 - 1e-9)).all()
    assert ran.makespan >= run(program, alone).makespan * (1 - 1e-9)


@MANY
@given(program=programs(), seed=SEEDS, interferes=st.booleans())
def test_relabelling_ranks_and_streams_changes_nothing(program: Program, seed: int, interferes: bool) -> None:
    prices = random_prices(program, seed, interferes)
    rng = np.random.default_rng(seed)
    ranks, streams = rng.permutation(program.ranks), rng.permutation(len(program.stream_rank))
    back = np.argsort(streams)
    other = replace(
        program,
        rank=ranks[program.rank].astype(np.int32),
        streams=streams[program.streams].astype(np.int32),
        stream_rank=ranks[program.stream_rank[back]].astype(np.int32),
        stream_lane=tuple(program.stream_lane[s] for s in back),
    )
    expected, actual = run(program, prices), run(other, prices)
    if interferes:
        np.testing.assert_allclose(actual.end, expected.end, rtol=1e-9, atol=1e-12)
    else:
        assert expected.end.tobytes() == actual.end.tobytes()


@MANY
@given(program=programs(), seed=SEEDS)
def test_text_round_trips(program: Program, seed: int) -> None:
    verify(program)
    text = render_text(program)
    again = parse_text(text)
    assert text == render_text(again)
    prices = random_prices(program, seed)
    assert run(program, prices).end.tobytes() == run(again, prices).end.tobytes()
