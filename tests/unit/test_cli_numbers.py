"""Options that want a number say what they got, and what was meant where that can be told."""

from __future__ import annotations

import re

import pytest

from simulator import load_job, simulate_job
from tests.command import Dtsim


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "goodput gpt3_175b --samples 1e3",
            "--samples: expected a whole number such as 8, got '1e3'. Way out: --samples 1000",
        ),
        ("search gpt3_175b --top=1e3", "--top: expected a whole number such as 8, got '1e3'. Way out: --top 1000"),
        ("schedule 1f1b -p4.5 -m 4", "--ranks: expected a whole number such as 8, got '4.5'"),
        ("schedule 1f1b -p 4 -m nan", "--microbatches: expected a whole number such as 8, got 'nan'"),
        ("schedule 1f1b -p 4 -m inf", "--microbatches: expected a whole number such as 8, got 'inf'"),
        ("schedule 1f1b -p 4 -m 4 --transfer 1ms", "--transfer: expected a number such as 0.5, got '1ms'"),
        ("serve --port 99999", "--port: expected a number less than or equal to 65535, got '99999'"),
        (
            "collective all_reduce --size 1GiB --cluster dgx_h100 --ranks 16 --groups 0",
            "--groups: expected a number greater than or equal to 1, got '0'",
        ),
    ],
)
def test_a_number_that_is_none_is_refused_in_one_line(dtsim: Dtsim, line: str, said: str) -> None:
    assert (2, "", f"error: {said}\n") == dtsim(*line.split())


def test_what_lacks_is_said_as_before(dtsim: Dtsim) -> None:
    code, _, said = dtsim("schedule", "1f1b", "-p")
    assert 2 == code
    assert "requires an argument" in said


def test_a_schedule_without_time_is_refused(dtsim: Dtsim) -> None:
    code, _, said = dtsim("schedule", "1f1b", "-p", "4", "-m", "4", "--forward", "0", "--backward", "0")
    assert 2 == code
    assert "no action of it takes time" in said
    assert 0 == dtsim("schedule", "1f1b", "-p", "4", "-m", "4", "--forward", "0")[0]


def test_a_latency_sweep_has_no_other_time_of_a_message(dtsim: Dtsim) -> None:
    code, _, said = dtsim("schedule", "1f1b", "-p", "4", "-m", "4", "--latency-sweep", "0,1", "--transfer", "3")
    assert (2, True) == (code, "Leave one out" in said)


def test_large_numbers_are_written_out(dtsim: Dtsim) -> None:
    """Days and prices for people have no powers of ten: 2,420 days, not 2.42e+03."""
    price = ("--set", "cluster.price_per_gpu_hour='90000 $/h'")
    for words in (
        ("run", "gpt2_124m_2gpu", "--tokens", "1000T", *price),
        ("goodput", "gpt2_124m_2gpu", "--days", "3650", "--samples", "2", "--no-levers"),
        ("compare", "gpt2_124m_2gpu", "--zero", "0,1", *price),
        ("search", "gpt3_175b", "--range", "plan.microbatch_size=1,2", *price),
    ):
        code, said, _ = dtsim(*words)
        assert (0, "") == (code, "".join(re.findall(r"\S*\de\+\d+\S*", said)))
    assert "e+" not in repr(simulate_job(load_job("gpt3_175b")))
