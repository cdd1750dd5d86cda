"""Quantities with units: what is read, what is refused, what is shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.units import in_unit, parse, show


@pytest.mark.parametrize(
    ("text", "symbol", "value"),
    [
        ("80 GB", "B", 80e9),
        ("80GiB", "B", 80 * 2**30),
        ("3.35 TB/s", "B/s", 3.35e12),
        ("400 Gb/s", "B/s", 50e9),
        ("400 Gbps", "B/s", 50e9),
        ("2 us", "s", 2e-6),
        ("1.5 h", "s", 5400.0),
        ("989 TFLOP/s", "FLOP/s", 989e12),
        ("1T", "tokens", 1e12),
        ("2.95 $/h", "$/h", 2.95),
    ],
)
def test_reads(text: str, symbol: str, value: float) -> None:
    assert value == pytest.approx(parse(text, symbol), rel=1e-15)


@pytest.mark.parametrize(
    ("text", "symbol", "words"),
    [
        ("3.35 TB", "B/s", 'expected a bandwidth such as "3.35 TB/s", got a size'),
        ("80", "B", "got the bare number"),
        ("80 parsecs", "B", "unknown unit 'parsecs'"),
        ("", "s", "expected a time"),
        ("1e400 s", "s", "finite"),
        ("nan s", "s", "expected a time"),
        ("9" * 100, "B", "expected a size"),
    ],
)
def test_refuses_with_the_rule(text: str, symbol: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", "\\(")):
        parse(text, symbol)


@given(st.floats(1e-9, 1e15))
def test_bandwidths_survive_the_border(value: float) -> None:
    assert parse(f"{value!r} GB/s", "B/s") == pytest.approx(value * 1e9, rel=1e-12)


@given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(["s", "B", "B/s", "FLOP/s"]))
def test_show_never_fails(value: float, symbol: str) -> None:
    assert show(value, symbol)


def test_shows_memory_in_gib_and_rates_in_decimal() -> None:
    assert "80 GiB" == show(80 * 2**30, "B")
    assert "50 GB/s" == show(50e9, "B/s")
    assert "0 s" == show(0.0, "s")
    assert math.isclose(312.0, in_unit(312e12, "TFLOP/s", "FLOP/s"))


def test_a_value_that_rounds_up_to_the_next_unit_is_shown_in_it() -> None:
    assert [show(v, "s") for v in (0.99968e-6, 0.99968e-3, 0.99968, 999.7, 1000.2)] == [
        "1 us",
        "1 ms",
        "1 s",
        "1000 s",
        "1000 s",
    ]
    assert [show(v, "FLOP/s") for v in (0.99968e15, 999.4e12)] == ["1 PFLOP/s", "999 TFLOP/s"]
    assert show(999.7 * 2**20, "B") == "1000 MiB"
