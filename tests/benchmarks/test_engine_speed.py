"""Rows per second of both engines, printed as a table (`pytest -m benchmark -s`); never judged by time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import run
from simulator.program.builder import ProgramBuilder, plain_segment, transfer_link
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.spec import verify


def one_f_one_b(ranks: int, microbatches: int) -> Program:
    """Return a 1F1B step with a transfer row between neighbours for every activation and gradient."""
    build = ProgramBuilder("1F1B")
    compute = [build.add_stream(build.add_rank()) for _ in range(ranks)]
    items = [build.add_item(plain_segment(name)) for name in ("forward", "backward")]
    orders = []
    for rank in range(ranks):
        warmup = min(ranks - 1 - rank, microbatches)
        steady = [pair for i in range(microbatches - warmup) for pair in ((0, warmup + i), (1, i))]
        orders.append(
            [(0, i) for i in range(warmup)] + steady + [(1, i) for i in range(microbatches - warmup, microbatches)]
        )
    number = {(rank, *act): rank * 2 * microbatches + i for rank in range(ranks) for i, act in enumerate(orders[rank])}
    first, transfers, arrivals = len(number), [], {}
    for a, b, action in [(r, r + 1, 0) for r in range(ranks - 1)] + [(r, r - 1, 1) for r in range(ranks - 1, 0, -1)]:
        pair = build.add_stream(a, f"pp>{b}"), build.add_stream(b, f"pp<{a}")
        link = build.add_item(transfer_link(f"{a}>{b}", a, b, message=2.0**24))
        for microbatch in range(microbatches):
            arrivals[b, action, microbatch] = first + len(transfers)
            transfers.append((link, pair, number[a, action, microbatch]))
    for rank in range(ranks):
        for action, microbatch in orders[rank]:
            after = [arrivals[rank, action, microbatch]] if (rank, action, microbatch) in arrivals else []
            build.add_row(items[action], compute[rank], after=after, action=action, chunk=rank, microbatch=microbatch)
    for link, pair, cause in transfers:
        build.add_row(link, pair, after=[cause])
    return build.build()


def prices_of(program: Program, interferes: bool) -> Prices:
    """Forward 1 s, backward 2 s, transfers of unequal times that slow compute and are slowed by it."""
    items = len(program.items)
    occupancy = 0.1 + 0.1 * np.random.default_rng(0).random(items)
    occupancy[:2] = 1.0, 2.0
    share, slowdown = np.zeros((items, 6)), np.ones((6, 6))
    share[:2, 0], share[:2, 1], share[2:, 4] = 0.6, 0.4, 1.0
    slowdown[0, 4], slowdown[1, 4], slowdown[4, 0] = 1.1, 1.2, 1.3
    prices = Prices.plain(occupancy, np.full(items, 0.01))
    return replace(prices, share=share, slowdown=slowdown) if interferes else prices


def seconds(call: Callable[[], object], times: int) -> float:
    """Return the least time of several calls."""
    best = np.inf
    for _ in range(times):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return float(best)


@pytest.mark.benchmark
def test_rows_per_second() -> None:
    large, small = one_f_one_b(64, 512), one_f_one_b(32, 256)
    table = []
    for interferes in (False, True):
        name = "with interference" if interferes else "without interference"
        for engine, program, times in (("compiled", large, 15), ("simpy", small, 1)):
            prices = prices_of(program, interferes)
            run(program, prices, engine)
            table.append(
                (f"{engine} {name}", program.size, seconds(lambda p=program, q=prices, e=engine: run(p, q, e), times))
            )
    table.append(("verify", large.size, seconds(lambda: verify(large), 7)))
    slowest = min(rows / took for _, rows, took in table)
    print(f"\n{'':34}{'rows':>10}{'ms':>10}{'Mrows/s':>10}{'ratio':>8}")
    for name, rows, took in table:
        print(f"{name:34}{rows:>10}{took * 1e3:>10.2f}{rows / took / 1e6:>10.2f}{rows / took / slowest:>8.0f}")
    assert (
        run(small, prices_of(small, False)).end.tobytes() == run(small, prices_of(small, False), "simpy").end.tobytes()
    )
