"""Predicted times of collectives against logs of nccl-tests (tests/data/nccl_logs/index.csv names their sources)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.collectives.fit.launch import host_seconds, with_host
from simulator.calibration.collectives.fit.platforms import fit_all, fit_nccl, platform_of, residuals
from simulator.calibration.collectives.read.tidy_logs import NcclLog, load_index, load_log
from simulator.calibration.collectives.report.profile_file import export_profile
from simulator.collectives import collective_seconds, profile_of
from simulator.errors import CalibrationError
from simulator.hardware.coefficients import Profile
from simulator.specs import load_spec

LOGS = load_index(Path(__file__).parents[1] / "data" / "nccl_logs" / "index.csv")
BUDGET = {
    "a100-40g_1x8_superbench_all_reduce": 0.08,
    "a100-40g_1x8_superbench_all_gather": 0.10,
    "a100_2x8_ibhdr_deepops_all_reduce": 0.10,
    "h100_1x8_dgxc_all_reduce": 0.08,
    "h100_2x8_ibndr_309a_all_reduce": 0.10,
    "b200_1x8_vultr_alltoall": 0.10,
}
"""Of logs whose platform has a profile; what one host copies through its memory says nothing of others and makes none."""
FITTED = [log for log in LOGS if log.name in BUDGET]


def host_of(log: NcclLog) -> float:
    """Return what the host of its one process takes."""
    return host_seconds(log, profile_of(log.fabric, log.place).single_process_launch)


def error(log: NcclLog, least: float = 0.0) -> float:
    """Return the median |predicted / measured - 1| over messages of at least this size."""
    chosen = log.message >= least
    device = [collective_seconds(log.kind, float(s), log.place, log.fabric).seconds for s in log.message[chosen]]
    return float(np.median(np.abs(with_host(device, host_of(log)) / log.seconds[chosen] - 1)))


@pytest.mark.parametrize("log", FITTED, ids=lambda log: log.name)
def test_median_error_of_each_log_is_within_its_budget(log: NcclLog) -> None:
    assert error(log) < BUDGET[log.name]


@pytest.mark.parametrize("log", FITTED, ids=lambda log: log.name)
def test_messages_of_training_are_within_an_eighth(log: NcclLog) -> None:
    assert error(log, least=4 * 2.0**20) < 0.125


def test_the_band_holds_most_points_of_a_log() -> None:
    for log in LOGS:
        found = [collective_seconds(log.kind, float(s), log.place, log.fabric) for s in log.message]
        far = np.abs(np.log(with_host([f.seconds for f in found], host_of(log)) / log.seconds))
        inside = far <= 1.2816 * np.array([f.sigma for f in found])
        assert inside.mean() > 0.7, log.name


def test_a_fit_is_nearer_to_its_logs_than_nccls_own_constants() -> None:
    mine = [log for log in LOGS if "a100-40g" in log.name]
    profile = fit_nccl(mine, "nccl_mine", applies_to=platform_of(mine[0]))
    for log in mine:
        before = np.median(np.abs(residuals(log, {})))
        after = np.median(np.abs(residuals(log, profile.pairs, profile.single_process_launch)))
        assert after < before / 4
    assert {log.name: log.digest for log in mine} == profile.logs
    assert profile.calibrated


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = fit_nccl(LOGS[3:4], "nccl_mine", applies_to=platform_of(LOGS[3]))
    export_profile(profile, tmp_path / "nccl_mine.toml")
    read = load_spec(tmp_path / "nccl_mine.toml", Profile)
    assert profile.pairs == read.pairs
    assert (profile.applies_to, profile.classes, profile.logs) == (read.applies_to, read.classes, read.logs)


@pytest.mark.slow
def test_sigmas_are_wider_than_the_errors_on_the_fitted_logs() -> None:
    profiles = {profile.name: profile for profile in fit_all(LOGS)}
    assert {"nccl_any_node", "nccl_any_fabric", "nccl_ampere_nvlink"} <= set(profiles)
    assert profiles["nccl_any_node"].everything.sigma > profiles["nccl_hopper_nvlink"].everything.sigma


def test_logs_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot be read"):
        load_log(tmp_path / "none.csv")
    (tmp_path / "odd.csv").write_text("bytes,us\n1,2\n")
    with pytest.raises(CalibrationError, match="size_bytes and time_us"):
        load_log(tmp_path / "odd.csv")
    (tmp_path / "text.csv").write_text("size_bytes,time_us\n8,fast\n")
    with pytest.raises(CalibrationError, match="line 2"):
        load_log(tmp_path / "text.csv")
    with pytest.raises(CalibrationError, match="groups that leave it"):
        fit_nccl([LOGS[0], LOGS[2]], "nccl_mixed")
