"""dtsim plan refuses what no planner can take, and keeps to its time."""

from __future__ import annotations

import time

import pytest

from tests.command import Dtsim


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bert24_training --seed -1", "a seed is a whole number from 0 to 2^63 - 1, but is -1"),
        ("bert24_training --seconds nan", "a planner gets more than 0 seconds, got nan"),
        (
            "bert24_training --devices 100000",
            "--devices: there are 1 device or more, and at most 2,048 in all, got 100000",
        ),
        (
            "vgg16 --problem pipeline --devices 4,0 --bandwidth 1GB/s,1GB/s",
            "--devices: there are 1 device or more, and at most 2,048 in all, got 4,0",
        ),
        (
            "gpt2_124m --devices 4",
            "'gpt2_124m' is a model, and a placement or pipeline is of a graph of costs (such as bert24_training, vgg16). "
            "Way out: --problem meshes or layout, which take a model, or the file of a graph",
        ),
        (
            "hetpipe_vgg19 --problem unlike_replicas --devices 4",
            "unlike_replicas is asked with a job alone; --devices would have no effect: leave it out",
        ),
    ],
)
def test_what_no_planner_can_take_is_refused(dtsim: Dtsim, line: str, said: str) -> None:
    assert (2, "", f"error: {said}\n") == dtsim("plan", *line.split())


@pytest.mark.parametrize("problem", ["pipeline", "synchronous --microbatches 4"])
def test_planners_stop_when_their_time_is_over(dtsim: Dtsim, problem: str) -> None:
    started = time.monotonic()
    asked = f"vgg16 --devices 1000 --bandwidth 1GB/s --seconds 0.2 --problem {problem}"
    code, _, said = dtsim("plan", *asked.split())
    assert 2 == code
    assert "found no plan within its budget" in said
    assert time.monotonic() - started < 8.0  # it took minutes
