"""Collectives that stretch the compute beside them and are not stretched themselves: settled row by row, as the readable engine has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import run
from simulator.engine.meetings import items_that_stretch
from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.prices import RESOURCE_KINDS, Prices
from simulator.program.program import Program
from simulator.program.spec import verify

GEMM, DP, PP = (RESOURCE_KINDS.index(kind) for kind in ("gemm", "dp", "pp"))


def step(seed: int, ranks: int = 3, rows: int = 40) -> Program:
    """Return compute, collectives of one rank or two, and messages, each after some rows before it."""
    rng = np.random.default_rng(seed)
    build = ProgramBuilder(f"step {seed}", axes=(("dp", 2), ("pp", ranks)))
    lanes = {}
    for rank in range(ranks):
        build.add_rank()
        lanes |= {(rank, lane): build.add_stream(rank, lane) for lane in ("compute", "dp", "copies")}
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if abs(a - b) == 1]
    lanes |= {(a, b, "out"): build.add_stream(a, f"pp>{b}") for a, b in pairs}
    lanes |= {(a, b, "in"): build.add_stream(b, f"pp<{a}") for a, b in pairs}
    layers = [build.add_item(plain_segment(name)) for name in ("short", "long", "longest")]
    buckets = [build.add_item(collective_link(f"bucket {rank}", "all_reduce", [rank])) for rank in range(ranks)]
    tied = build.add_item(collective_link("tied", "all_reduce", [0, ranks - 1]))
    messages = {pair: build.add_item(transfer_link(f"message {pair}", *pair)) for pair in pairs}
    for row in range(rows):
        after = rng.choice(row, min(row, int(rng.integers(0, 3))), replace=False).tolist() if row else []
        rank, kind = int(rng.integers(ranks)), rng.random()
        if kind < 0.5:
            build.add_row(int(rng.choice(layers)), lanes[(rank, "compute")], after=after)
        elif kind < 0.8:
            build.add_row(buckets[rank], lanes[(rank, "dp" if kind < 0.7 else "copies")], after=after)
        elif kind < 0.85:
            build.add_row(tied, (lanes[(0, "dp")], lanes[(ranks - 1, "dp")]), after=after)
        else:
            a, b = pairs[int(rng.integers(len(pairs)))]
            build.add_row(messages[(a, b)], (lanes[(a, b, "out")], lanes[(a, b, "in")]), after=after)
    program = build.build()
    verify(program)
    return program


def priced(program: Program, seed: int) -> Prices:
    """Return prices under which collectives slow products down, and nothing else slows anything."""
    rng, items = np.random.default_rng(seed), len(program.items)
    times = np.where(rng.random(items) < 0.3, rng.choice([0.0, 0.5, 1.0], items), rng.random(items))
    share, slowdown = np.zeros((items, len(RESOURCE_KINDS))), np.ones((len(RESOURCE_KINDS),) * 2)
    for number, item in enumerate(program.items):
        name = item.name.split()[0]
        kind = {"bucket": DP, "tied": DP, "message": PP}.get(name, GEMM)
        share[number, kind] = 0.7 if name == "long" else 1.0
    slowdown[GEMM, DP] = 1.25
    return replace(Prices.plain(times, 0.1 * rng.random(items)), share=share, slowdown=slowdown)


def test_engines_agree_where_collectives_stretch_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.engine import compiled_interference

    loops = []
    whole = compiled_interference.run_fluid
    monkeypatch.setattr(compiled_interference, "run_fluid", lambda *given: loops.append(1) or whole(*given))
    stretched = 0
    for seed in range(150):
        program = step(seed)
        prices = priced(program, seed)
        assert items_that_stretch(program, prices) is not None
        expected, actual = run(program, prices, "simpy"), run(program, prices, "compiled")
        assert np.allclose(expected.start, actual.start, rtol=1e-12, atol=1e-12)
        assert np.allclose(expected.end, actual.end, rtol=1e-12, atol=1e-12)
        alone = run(program, replace(prices, slowdown=np.ones_like(prices.slowdown)), "compiled")
        stretched += actual.end.tobytes() != alone.end.tobytes()
    assert stretched > 50  # collectives do meet compute here
    assert 0 < len(loops) < 100  # some come after rows of other ranks and need the event loop, most do not


def test_where_compute_slows_collectives_nothing_is_settled_row_by_row() -> None:
    program = step(1)
    prices = priced(program, 1)
    slowdown = prices.slowdown.copy()
    slowdown[DP, GEMM] = 1.5
    assert items_that_stretch(program, replace(prices, slowdown=slowdown)) is None


def test_an_order_found_once_serves_other_prices_of_the_same_rows() -> None:
    program = step(2)
    for seed in range(5):
        prices = replace(priced(program, seed), slowdown=np.ones((len(RESOURCE_KINDS),) * 2))
        expected, actual = run(program, prices, "simpy"), run(program, prices, "compiled")
        assert expected.end.tobytes() == actual.end.tobytes()
