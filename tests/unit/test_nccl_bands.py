"""How wide a band is: for the machine of a log, for another of its kind, for one that nobody measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.accuracy.nccl import OWN_LOG, SAME_PLATFORM, nccl_outcomes
from simulator.accuracy.scores import band_scores as outcome_bands
from simulator.calibration.collectives.fit.own_width import own_of
from simulator.calibration.collectives.fit.platforms import fit_nccl, fit_platform, platform_of, points_of, residuals
from simulator.calibration.collectives.read.tidy_logs import NcclLog, load_index
from simulator.calibration.collectives.report.accuracy import band_scores, log_accuracies
from simulator.calibration.collectives.report.profile_file import export_profile
from simulator.calibration.collectives.tool import Collected, fit_profiles
from simulator.collectives import collective_seconds, profile_of
from simulator.hardware.coefficients import Profile, size_class
from simulator.hardware.group_placement import describe_group
from simulator.importers.table.rows import read_rows
from simulator.report.bands import judge_bands
from simulator.report.prediction import QUANTILE

INDEX = Path(__file__).parents[1] / "data" / "nccl_logs" / "index.csv"
SHIPPED = "nccl_hopper_nvlink_infiniband"
LOGS = {log.name: log for log in load_index(INDEX)}
H100 = LOGS["h100_2x8_ibndr_309a_all_reduce"]


def widths(log: NcclLog, profile: Profile) -> np.ndarray:
    found = [profile.own_sigma(log.kind, float(size), log.place, log.name) for size in log.message]
    return QUANTILE * np.array(found, float)


def test_a_band_of_few_errors_leaves_room_for_those_not_yet_seen() -> None:
    log = points_of(H100, np.arange(len(H100.message)) < 5)
    errors = np.array([0.01, -0.02, 0.03, -0.04, 0.05])
    own = own_of(log, errors)
    assert own.small * QUANTILE > np.quantile(np.abs(errors), 0.8)
    assert (own.kind, own.ranks, own.nodes) == ("all_reduce", 16, 2)
    assert own.small == own.large, "a size class without points takes the width of the log"


@pytest.mark.parametrize("log", LOGS.values(), ids=lambda log: log.name)
def test_the_band_of_a_log_itself_is_neither_too_wide_nor_too_narrow(log: NcclLog) -> None:
    profile = fit_platform([log], "nccl_own")
    errors = residuals(log, profile.pairs, profile.single_process_launch, profile.network_latency)
    assert 0.75 <= np.mean(np.abs(errors) <= widths(log, profile)) <= 0.88


def test_the_band_holds_sizes_that_it_has_not_seen() -> None:
    shares = []
    for log in LOGS.values():
        sizes = np.unique(log.message)
        for part in (0, 1):
            left = np.isin(log.message, sizes[part::2])
            half = fit_nccl([points_of(log, ~left)], "nccl_half", applies_to=platform_of(log))
            rest = points_of(log, left)
            errors = residuals(rest, half.pairs, half.single_process_launch, half.network_latency)
            own = half.own[log.name]
            held = [QUANTILE * getattr(own, size_class(size)) for size in rest.message.tolist()]
            shares.append(np.mean(np.abs(errors) <= np.array(held)))
    assert 0.65 < np.mean(shares) < 0.92


def test_a_cluster_that_names_the_profile_of_its_own_logs_is_surer_than_its_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "hardware_specs" / "calibrations"
    folder.mkdir(parents=True)
    (profile,) = fit_profiles(Collected(logs=(H100,), remarks=(), refused=(), versions={}), "nccl_ours")
    export_profile(profile, folder / "nccl_ours.toml")
    ours = replace(H100.fabric, calibration=("nccl_ours",))
    size = 2.0**26
    mine = collective_seconds("all_reduce", size, H100.place, ours)
    assert mine.sigma == pytest.approx(profile.own[H100.name].large)
    fitted = fit_nccl([H100], "nccl_plain", applies_to=platform_of(H100))
    assert profile.everything.sigma > fitted.everything.sigma, "one log says nothing of another machine"
    shipped = collective_seconds("all_reduce", size, H100.place, replace(ours, calibration=(SHIPPED,)))
    assert profile_of(H100.fabric, H100.place).residual("all_reduce", shipped.algorithm, size).sigma == shipped.sigma
    wider = describe_group(64, 8)
    assert collective_seconds("all_reduce", size, wider, ours).sigma > mine.sigma, "eight nodes were not measured"


def test_a_table_of_logs_says_what_each_band_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of the table are halves of those that the shipped profiles know, so other logs of such machines."""
    rows = read_rows(INDEX)
    outcomes = [o for found in nccl_outcomes(rows, INDEX) for o in found]
    assert {SAME_PLATFORM} == {o.band_of for o in outcomes if o.group == H100.name}
    mine = fit_nccl([H100], "nccl_own", applies_to=platform_of(H100))
    monkeypatch.setattr("simulator.accuracy.nccl.profile_of", lambda fabric, place: mine)
    now = [o for found in nccl_outcomes(rows, INDEX) for o in found if o.group == H100.name]
    assert {OWN_LOG} == {o.band_of for o in now}
    assert [one.band_of for one in outcome_bands(now)] == [OWN_LOG]
    for o in now:
        size = float(o.case_id.split(":")[1])
        sigma = mine.own_sigma("all_reduce", size, H100.place, H100.name)
        assert sigma is not None
        assert o.predicted is not None
        assert o.high == pytest.approx(o.predicted * np.exp(QUANTILE * sigma))


def test_shares_are_counted_group_by_group() -> None:
    groups = [[(True, 2.0)] * 8 + [(False, 2.0)] * 2, [(True, 1.0)] * 4, [(False, 3.0)] * 2]
    scores = judge_bands("x", groups)
    assert (3, 1, 1, 1) == (scores.groups, scores.even, scores.above, scores.below)
    assert scores.coverage == pytest.approx(12 / 16)


def test_the_table_of_accuracy_judges_each_way_of_predicting() -> None:
    found = list(log_accuracies([LOGS["h100_1x8_dgxc_all_reduce"], LOGS["b200_1x8_vultr_alltoall"]]))
    names = [one.band_of for one in band_scores(found)]
    assert names == ["own log", "own log, sizes left out", "left out, without", "prior"]
    own, split = band_scores(found)[:2]
    assert own.groups == split.groups == 2
    assert 0.75 <= own.coverage <= 0.88
