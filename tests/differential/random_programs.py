"""Random programs that obey all rules, and prices for them, for the tests of the engines and of the text form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.prices import RESOURCE_KINDS, Prices
from simulator.program.program import COPY, Link, Program, Tensor

LANES = ("compute", "tp", "dp", "copy")


@st.composite
def programs(draw: Any, rows: int = 24) -> Program:
    """Programs of up to four ranks, with rows over several streams and waits for rows of lower and higher number."""
    ranks, lanes = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return random_program(ranks, lanes, draw(st.integers(0, rows)), draw(st.integers(0, 2**32 - 1)))


def random_program(ranks: int, lanes: int, rows: int, seed: int) -> Program:
    """Return a program without deadlock: causes come first in a hidden order; numbers follow the order of streams."""
    rng = np.random.default_rng(seed)
    build = ProgramBuilder(f"random {seed}", axes=(("tp", 2), ("pp", ranks)))
    for _ in range(ranks):
        build.add_rank(weight=float(rng.integers(1, 4)))
    streams = [(rank, lane) for rank in range(ranks) for lane in LANES[:lanes]]
    streams = [streams[i] for i in rng.permutation(len(streams))]
    for rank, lane in streams:
        build.add_stream(rank, lane)
    layer = [build.add_item(plain_segment(name)) for name in ("short", "long", "empty")]
    link_of: dict[tuple[int, ...], int] = {}
    memory = build.add_effect(Tensor(name="layer", category="activations", bytes=float(rng.integers(1, 2**30))))
    order = []
    for hidden in range(rows):
        width = min(len(streams), int(rng.choice([1, 1, 1, 2, 3])))
        held = tuple(rng.choice(len(streams), width, replace=False).tolist())
        causes = min(hidden, int(rng.integers(0, 4)))
        earlier = rng.choice(hidden, causes, replace=False).tolist() if causes else []
        order.append((held, earlier))
    numbers = _numbers([held for held, _ in order], rng)
    for number in range(rows):
        hidden = int(np.flatnonzero(numbers == number)[0])
        held, earlier = order[hidden]
        after = [int(numbers[other]) for other in earlier]
        touched = tuple(sorted({streams[s][0] for s in held}))
        if rng.random() < 0.5:
            forward = {"action": 0, "chunk": 0, "microbatch": number} if rng.random() < 0.5 else {}
            effects = {"start_effect": memory, "end_effect": memory} if rng.random() < 0.5 else {}
            build.add_row(int(rng.choice(layer)), held, after=after, **forward, **effects)
        else:
            if touched not in link_of:
                link_of[touched] = build.add_item(_link(touched, rng))
            build.add_row(link_of[touched], held, after=after, step=int(rng.integers(0, 2)))
    return build.build()


def _link(ranks: tuple[int, ...], rng: np.random.Generator) -> Link:
    message = float(rng.integers(0, 2**31))
    if len(ranks) == 2 and rng.random() < 0.5:
        return transfer_link(f"act {ranks}", *ranks, message=message)
    link = collective_link(f"bucket {ranks}", "all_reduce", ranks, message=message, group=("tp", "dp"))
    return replace(link, kind=COPY, collective="") if len(ranks) == 1 and rng.random() < 0.5 else link


def _numbers(held: list[tuple[int, ...]], rng: np.random.Generator) -> np.ndarray:
    """Return a number per row that rises along each stream but else does not know what must come first."""
    before: list[set[int]] = [{o for o in range(row) if set(held[o]) & set(held[row])} for row in range(len(held))]
    numbers, left = np.full(len(held), -1), set(range(len(held)))
    for number in range(len(held)):
        free = sorted(row for row in left if not before[row] & left)
        chosen = int(rng.choice(free))
        numbers[chosen] = number
        left.remove(chosen)
    return numbers


def random_prices(program: Program, seed: int, interferes: bool = False) -> Prices:
    """Return prices with many zeros and ties; with shares and slowdowns of kinds if they are to interfere."""
    rng, items = np.random.default_rng(seed), len(program.items)
    grid = np.array([0.0, 0.1, 0.2, 0.3, 1.0])
    occupancy = np.where(rng.random(items) < 0.7, rng.choice(grid, items), rng.random(items))
    latency = np.where(rng.random(items) < 0.5, 0.0, rng.choice(grid, items))
    prices = Prices.plain(occupancy, latency)
    if not interferes:
        return prices
    kinds = len(RESOURCE_KINDS)
    share = rng.dirichlet(np.ones(kinds), items) * (rng.random((items, kinds)) < 0.5)
    slowdown = 1.0 + rng.random((kinds, kinds)) * (rng.random((kinds, kinds)) < 0.7)
    share[0, 0] = max(share[0, 0], 0.1)
    slowdown[0, 0] = 1.5
    return replace(prices, share=share, slowdown=slowdown)
