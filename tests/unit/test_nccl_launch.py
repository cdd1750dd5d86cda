"""What one process that launches for several GPUs costs, and that it is told apart from the wires."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.collectives.fit.cost_model import fit_nccl, platform_of, predict
from simulator.calibration.collectives.fit.launch import host_seconds, with_host
from simulator.calibration.collectives.read.tidy_logs import NcclLog, load_index
from simulator.hardware.coefficients import load_cost_table

INDEX = Path(__file__).parents[1] / "data" / "nccl_logs" / "index.csv"
LOGS = {log.name: log for log in load_index(INDEX)}
TOGETHER = LOGS["a100-40g_1x8_superbench_all_reduce"]


def test_small_messages_of_one_process_take_what_the_host_takes() -> None:
    """Published: 35 us for each of two collectives of very different hops, from 4 B to 64 KiB."""
    gather = LOGS["a100-40g_1x8_superbench_all_gather"]
    profile = fit_nccl([TOGETHER, gather], "nccl_mine", applies_to=platform_of(TOGETHER))
    for log in (TOGETHER, gather):
        small = log.message < 2.0**14
        found = predict(log, profile.pairs, profile.single_process_launch, profile.network_latency)
        assert float(np.median(np.abs(found[small] / log.seconds[small] - 1))) < 0.1
        alone = replace(log, single_process=False)
        without = predict(alone, profile.pairs, profile.single_process_launch, profile.network_latency)
        assert float(np.median(without[small])) < 0.9 * float(np.median(log.seconds[small]))


@pytest.mark.parametrize("kind", ["all_reduce", "send_recv", "all_to_all"])
def test_every_send_and_receive_is_a_call_of_its_own(kind: str) -> None:
    table, log = load_cost_table(), replace(TOGETHER, kind=kind)
    calls = {"all_reduce": 0, "send_recv": 2, "all_to_all": 16}[kind]
    assert host_seconds(log, 4e-6) == pytest.approx(8 * (4e-6 + calls * table.point_to_point_call))
    assert host_seconds(replace(log, single_process=False), 4e-6) == 0.0


def test_a_process_of_each_node_launches_for_its_own_gpus_alone() -> None:
    across = LOGS["h100_2x8_ibndr_309a_all_reduce"]
    two: NcclLog = replace(across, single_process=True)
    assert host_seconds(two, 4e-6) == pytest.approx(8 * 4e-6)


def test_host_and_gpus_hide_each_other_where_they_differ() -> None:
    times = with_host(np.array([1e-6, 35e-6, 1e-3]), 35e-6)
    assert times[0] == pytest.approx(35e-6, rel=1e-3)
    assert 35e-6 < times[1] < 2 * 35e-6
    assert times[2] == pytest.approx(1e-3, rel=1e-3)
