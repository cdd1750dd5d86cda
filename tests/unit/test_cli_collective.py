"""What `dtsim collective` answers."""

from __future__ import annotations

import json
import math

import pytest

from tests.command import Dtsim
from tests.unit.test_cli_verbs import answer


@pytest.mark.parametrize("spelling", ["all_to_all", "alltoall", "AllToAll"])
def test_collective_answers_to_any_spelling(dtsim: Dtsim, spelling: str) -> None:
    found = answer(dtsim("collective", spelling, "--size", "1GiB", "--cluster", "dgx_h100", "--ranks", "16", "--json"))
    time = found["time_s"]
    assert "all_to_all" == found["kind"]
    assert time["low"] < time["value"] < time["high"]
    assert math.isclose(2**30 / time["value"], found["algorithm_bandwidth"])
    assert math.isclose(found["algorithm_bandwidth"] * 15 / 16, found["bus_bandwidth"])


def test_collective_with_servers_and_through_one_port(dtsim: Dtsim) -> None:
    words = ("collective", "all_reduce", "--size", "1GiB", "--cluster", "dgx_a100", "--ranks", "8", "--nodes", "8")
    few, many = (
        answer(dtsim(*words, "--algorithm", "byteps", "--servers", k, "--json"))["time_s"]["value"] for k in ("0", "8")
    )
    assert 1.75 == pytest.approx(few / many, rel=0.01)
    for more, told in (((), "servers help byteps"), (("--algorithm", "byteps", "--nodes", "1"), "lie on one")):
        code, out, error = dtsim(*words, "--servers", "3", *more)
        assert (2, "") == (code, out)
        assert told in error
    code, out, _ = dtsim(*words, "--algorithm", "naive")
    assert 0 == code
    assert "4 times as many each way, 8 times as long" in out


def test_collective_over_more_nodes_takes_another_way(dtsim: Dtsim) -> None:
    one, eight = (
        answer(
            dtsim(
                "collective", "all_reduce", "--size", "1GiB", "--cluster", "dgx_h100", "--ranks", "8", *more, "--json"
            )
        )
        for more in ((), ("--nodes", "8"))
    )
    assert one["time_s"]["value"] < eight["time_s"]["value"]
    ring = answer(
        dtsim(
            *("collective", "all_reduce", "--size", "1GiB", "--cluster", "dgx_h100", "--ranks", "8", "--json"),
            *("--algorithm", "ring", "--protocol", "simple"),
        )
    )
    assert ("ring", "simple") == (ring["algorithm"], ring["protocol"])
    assert one["time_s"]["value"] <= ring["time_s"]["value"]


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_one_rank_has_everything_already(dtsim: Dtsim, kind: str) -> None:
    code, out, _ = dtsim("collective", kind, "--size", "1GiB", "--cluster", "dgx_h100", "--ranks", "1")
    assert 0 == code
    assert "over 1 rank of dgx_h100: 0 s" in out
    assert "algorithm none" in out


def test_more_gpus_than_a_cluster_may_have_are_told_as_such(dtsim: Dtsim) -> None:
    """They lie evenly on its nodes."""
    code, out, error = dtsim(
        "collective", "all_reduce", "--size", "1GiB", "--cluster", "dgx_h100", "--ranks", "800000000"
    )
    assert (code, out) == (2, "")
    assert "the number of GPUs must be a whole number from 1 to" in error
    assert "evenly" not in error


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("--ranks 16 --nodes 3", "--nodes 2, or --ranks 15"),
        ("--ranks 16 --nodes 1", "--nodes 2, or --ranks 8"),
        ("--ranks 16 --nodes 99", "--nodes 16, or --ranks 99"),
        ("--ranks 9999", "--ranks 10000"),
        ("--ranks 0", "--ranks 1"),
    ],
)
def test_ranks_that_no_nodes_hold_evenly_name_what_does(dtsim: Dtsim, asked: str, nearest: str) -> None:
    words = ("collective", "all_reduce", "--size", "1MiB", "--cluster", "dgx_h100")
    code, _, error = dtsim(*words, *asked.split())
    assert 2 == code
    assert f"do not. Nearest: {nearest}\n" in error
    for way in nearest.split(", or "):
        kept = asked.split()
        option, value = way.split()
        kept[kept.index(option) + 1] = value
        assert 0 == dtsim(*words, *kept)[0]


def test_groups_side_by_side_are_called_so(dtsim: Dtsim) -> None:
    words = ("--size", "1GiB", "--cluster", "dgx_h100", "--ranks", "8", "--groups", "2", "--nodes", "2")
    assert "2 of 2 groups leave the node" in dtsim("collective", "all_reduce", *words)[1]


def test_settings_change_what_the_cluster_is_made_of_and_nothing_else(dtsim: Dtsim) -> None:
    words = ("collective", "all_reduce", "--size", "1GiB", "--cluster", "dgx_h100", "--ranks", "16", "--json")
    whole, half = (json.loads(dtsim(*words, *more)[1])["time_s"]["value"] for more in ((), ("--set", "cluster.nics=4")))
    assert half > 1.3 * whole
    for setting in ("cluster.gpus=8", "plan.tensor_parallel=8", "nics=4", "cluster.nics=none"):
        code, out, error = dtsim(*words, "--set", setting)
        assert (2, "", 1) == (code, out, error.count("\n"))
        assert "cluster.nics" in error or "nics" in setting
