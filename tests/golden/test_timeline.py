"""Timelines as text, to the last character; the programs are made from orders written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent

import numpy as np
import pytest

from simulator.engine import run
from simulator.errors import ProgramError
from simulator.program.builder import ProgramBuilder, plain_segment
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.trace import Trace
from simulator.report.timeline import render_timeline

SECONDS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
KINDS = "FBIW"


def pipeline(orders: Sequence[str], upwards: Sequence[int] = ()) -> tuple[Program, Trace]:
    """One rank per order such as "F0 F1 B0 B1"; microbatches run down the ranks, those in `upwards` up."""
    last = len(orders) - 1
    actions = [(rank, cell[0], int(cell[1:])) for rank, order in enumerate(orders) for cell in order.split()]
    row = {(kind, last - rank if m in upwards else rank, m): n for n, (rank, kind, m) in enumerate(actions)}
    build = ProgramBuilder()
    streams = [build.add_stream(build.add_rank()) for _ in orders]
    items = {kind: build.add_item(plain_segment(kind, "forward" if kind == "F" else "backward")) for kind in KINDS}
    for (kind, chunk, m), n in row.items():
        needs = {
            "F": [("F", chunk - 1, m)],
            "B": [("F", chunk, m), ("B", chunk + 1, m)],
            "I": [("F", chunk, m), ("I", chunk + 1, m)],
            "W": [("I", chunk, m)],
        }[kind]
        after = [row[need] for need in needs if need in row]
        rank = actions[n][0]
        build.add_row(items[kind], streams[rank], after=after, action=KINDS.index(kind), chunk=chunk, microbatch=m)
    program = build.build()
    prices = Prices.plain(np.array([SECONDS[kind] for kind in KINDS]), np.zeros(len(KINDS)))
    return program, run(program, prices)


def picture(text: str) -> str:
    return dedent(text).strip("\n")


ONE_F_ONE_B = (
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
)
"""Four ranks, eight microbatches: fill, then one forward and one backward in turn (warm-up 3, 2, 1, 0 + 1)."""

CHIMERA = ("F0 F1 F2 B2 F3 B3 B0 B1", "F0 F2 F1 F3 B2 B0 B3 B1", "F2 F0 F3 F1 B0 B2 B1 B3", "F2 F3 F0 B0 F1 B1 B2 B3")
"""Four ranks, four microbatches: 0 and 1 run down the ranks, 2 and 3 up."""


def test_one_f_one_b() -> None:
    expected = picture("""
        rank 0 |0123......aa4bb5cc6dd7ee.ff.gg.hh|
        rank 1 |.012....aa3bb4cc5dd6ee7ff.gg.hh..|
        rank 2 |..01..aa2bb3cc4dd5ee6ff7gg.hh....|
        rank 3 |...0aa1bb2cc3dd4ee5ff6gg7hh......|
        """)
    assert expected == render_timeline(*pipeline(ONE_F_ONE_B))


def test_chimera() -> None:
    expected = picture("""
        rank 0 |01.2cc3dd.aa..bb|
        rank 1 |.0213.ccaaddbb..|
        rank 2 |.2031.aaccbbdd..|
        rank 3 |23.0aa1bb.cc..dd|
        """)
    assert expected == render_timeline(*pipeline(CHIMERA, upwards=(2, 3)))


def test_the_halves_of_a_split_backward_look_different() -> None:
    expected = picture("""
        rank 0 |01.aAbB|
        rank 1 |.0a1bAB|
        """)
    assert expected == render_timeline(*pipeline(["F0 F1 I0 W0 I1 W1", "F0 I0 F1 I1 W0 W1"]))


def test_names_of_ranks_are_as_wide_as_the_last_one() -> None:
    for ranks, last in ((10, "rank 9 |"), (11, "rank 10 |")):
        lines = render_timeline(*pipeline(["F0 B0"] * ranks)).splitlines()
        assert lines[-1].startswith(last)
        assert {line.index("|") for line in lines} == {len(last) - 1}


def test_a_given_unit_stretches_the_picture() -> None:
    expected = picture("""
        rank 0 |00......aaaa|
        rank 1 |..00aaaa....|
        """)
    assert expected == render_timeline(*pipeline(["F0 B0", "F0 B0"]), unit=0.5)


def test_beyond_ten_microbatches_the_last_digit_shows() -> None:
    forwards, backwards = " ".join(f"F{m}" for m in range(13)), " ".join(f"B{m}" for m in range(13))
    expected = "rank 0 |0123456789012aabbccddeeffgghhiijjaabbcc|"
    assert expected == render_timeline(*pipeline([f"{forwards} {backwards}"]))


def test_a_picture_too_wide_gets_a_coarser_unit_and_says_so() -> None:
    expected = picture("""
        rank 0 |13...ab5cd7ef.gh.|
        rank 1 |02..ab4cd6ef.gh..|
        rank 2 |.1.ab3cd5ef7gh...|
        rank 3 |.0ab2cd4ef6gh....|
        """)
    drawn = render_timeline(*pipeline(ONE_F_ONE_B), width=30).splitlines()
    assert expected.splitlines() == drawn[:4]
    assert drawn[4].startswith("one column = 2 s, 2 times the shortest row (1 s), to fit 30 characters")


def test_updates_and_rank_numbers_have_their_place() -> None:
    build = ProgramBuilder()
    item = build.add_item(plain_segment("update", "optimizer"))
    for rank in range(11):
        build.add_row(item, build.add_stream(build.add_rank()), action=4 if rank % 2 else -1)
    program = build.build()
    lines = render_timeline(program, run(program, Prices.plain(np.ones(1), np.zeros(1)))).splitlines()
    assert ["rank  0 |#|", "rank  9 |^|", "rank 10 |#|"] == [lines[0], lines[9], lines[10]]


@pytest.mark.parametrize("unit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_unit_must_be_above_zero(unit: float) -> None:
    with pytest.raises(ProgramError, match="above zero"):
        render_timeline(*pipeline(["F0 B0"]), unit=unit)


def test_a_rank_on_which_nothing_lasts_is_idle() -> None:
    build = ProgramBuilder()
    streams = [build.add_stream(build.add_rank()) for _ in range(2)]
    items = [build.add_item(plain_segment(name, "forward")) for name in ("work", "nothing")]
    for n, (stream, item) in enumerate(zip(streams, items, strict=True)):
        build.add_row(item, stream, action=0, chunk=n, microbatch=0)
    program = build.build()
    trace = run(program, Prices.plain(np.array([3.0, 0.0]), np.zeros(2)))
    assert ["rank 0 |000|", "rank 1 |...|"] == render_timeline(program, trace, unit=1.0).splitlines()
