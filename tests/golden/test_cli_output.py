"""The text of answers that do not depend on any calibration, and the headings of those that do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.cli import main


@pytest.fixture
def dtsim(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        return int(left.value.code or 0), capsys.readouterr().out

    return call


CHIMERA = """\
rank 0 |01.2cc3dd.aa..bb|
rank 1 |.0213.ccaaddbb..|
rank 2 |.2031.aaccbbdd..|
rank 3 |23.0aa1bb.cc..dd|
digits: forwards by the last digit of their microbatch; letters: backwards, a of microbatch 0, capitals: weight halves; # two as one; . idle

chimera: makespan 16, bubble 25.0 % of the time (idle / busy 0.333), 24 messages
peak activations per rank (microbatches on one rank's share): 3, 4, 4, 3
"""


def test_schedule_draws_the_timeline(dtsim: Any) -> None:
    assert (0, CHIMERA) == dtsim("schedule", "chimera", "-p", "4", "-m", "4")


def test_schedule_writes_the_orders_that_pytorch_reads(dtsim: Any) -> None:
    expected = "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"
    assert (0, expected) == dtsim("schedule", "1f1b", "-p", "2", "-m", "3", "--format", "torch-csv")


def test_schedule_json(dtsim: Any) -> None:
    code, out = dtsim("schedule", "1F1B", "-p", "4", "-m", "8", "--format", "json")
    found = json.loads(out)
    assert 0 == code
    assert (33.0, 3 / 11, [4.0, 3.0, 2.0, 1.0]) == (
        found["makespan"],
        found["bubble_fraction"],
        found["peak_activations"],
    )
    assert "3F0" == found["orders"][3][0]
    assert {"bubble_overhead", "longest_rank_span", "longest_idle_in_span", "messages", "weight_copies"} <= set(found)
    assert {"peak_activations_if_freed_at_input_grad", "schema_version", "provenance"} <= set(found)


@pytest.mark.parametrize(
    ("times", "makespan"),
    [
        ((), 33.0),
        (("--forward", "2", "--backward", "2"), 44.0),
        (("--input-grad", "1", "--weight-grad", "2"), 44.0),
        (("--input-grad", "3"), 55.0),
        (("--transfer", "0.5"), 36.0),
    ],
)
def test_schedule_times(dtsim: Any, times: tuple[str, ...], makespan: float) -> None:
    out = dtsim("schedule", "gpipe", "-p", "4", "-m", "8", "--format", "json", *times)[1]
    assert makespan == json.loads(out)["makespan"]


def test_run_is_told_in_this_order(dtsim: Any) -> None:
    code, out = dtsim("run", "gpt3_175b", "--tokens", "1T", "--measured", "1000 s")
    parts = (
        "gpt3_175b: ",
        "tokens/s per GPU",
        "where the time goes",
        "memory at the peak",
        "how sure",
        "measured ",
        "training on",
    )
    places = [out.index(part) for part in parts]
    assert 0 == code
    assert places == sorted(places)
    assert max(len(line) for line in out.split("\n")) < 400


def test_version(dtsim: Any) -> None:
    from simulator import __version__

    assert (0, f"{__version__}\n") == dtsim("--version")
