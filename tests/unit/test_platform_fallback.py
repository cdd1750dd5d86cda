"""Platforms that stand for each other, and how far machines of one kind lie apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.collectives.fit.between_machines import (
    at_least,
    left_out,
    machine_of,
    of_platform,
    spreads,
    widened,
)
from simulator.calibration.collectives.fit.platform_fallback import (
    by_fallback,
    fallback_of,
    fit_fallback,
    with_fallback,
)
from simulator.calibration.collectives.fit.platforms import fit_all, fit_nccl, fit_platform, platform_of
from simulator.calibration.collectives.read.tidy_logs import load_index, published_in
from simulator.collectives import collective_seconds
from simulator.hardware.coefficients import SIZE_CLASSES, PairName, find_profile, pooled_profile
from simulator.hardware.group_placement import describe_group

INDEX = Path(__file__).parents[1] / "data" / "nccl_logs" / "index.csv"
LOGS = {log.name: log for log in load_index(INDEX)}
H100 = LOGS["h100_2x8_ibndr_309a_all_reduce"]
ROCE = (*platform_of(H100)[:2], "roce", True)
HOPS = {"infiniband": 0.0}
RING, NVLS_TREE = PairName("ring", "simple"), PairName("nvls_tree", "simple")


def test_a_platform_borrows_the_pairs_that_its_logs_do_not_hold() -> None:
    fallback = fit_fallback(ROCE, {platform_of(H100): [H100]}, {}, HOPS)
    assert fit_fallback(ROCE, {}, {}, HOPS) == {}
    own = fit_nccl([H100], "nccl_own", applies_to=platform_of(H100))
    few = own.model_copy(update={"pairs": {RING: own.pairs[RING]}})
    whole = with_fallback(few, fallback)
    assert set(whole.pairs) == set(fallback)
    assert whole.pairs[RING] == own.pairs[RING]
    assert whole.holds(RING)
    assert not whole.holds(NVLS_TREE)
    assert NVLS_TREE in whole.borrowed


def test_a_platform_without_logs_takes_its_fallbacks_multipliers_and_is_not_called_measured() -> None:
    fallback = fit_fallback(ROCE, {platform_of(H100): [H100]}, {}, HOPS)
    stranger = by_fallback(
        pooled_profile("fabric"), fallback, "nccl_hopper_nvlink_roce", ROCE, "nccl_hopper_nvlink_infiniband"
    )
    assert stranger.pairs == fallback
    assert not stranger.calibrated
    assert not stranger.measured("all_reduce", "ring", "simple", 2.0**26)
    assert stranger.network_latency["roce"] > 0


def test_a100_on_roce_is_predicted_by_a100_on_infiniband() -> None:
    """No log of such a cluster ships; the cards are the same, so its ring moves as many bytes."""
    fabric = LOGS["a100_2x8_ibhdr_deepops_all_reduce"].fabric
    place, size = describe_group(16, 2), 2.0**30
    here = collective_seconds("all_reduce", size, place, fabric)
    there = collective_seconds("all_reduce", size, place, replace(fabric, network="roce"))
    assert there.seconds == pytest.approx(here.seconds, rel=0.02)
    assert there.profile == "nccl_ampere_nvlink_roce"
    assert (here.calibrated, there.calibrated) == (True, False)
    assert there.sigma >= here.sigma


def test_a_fallback_goes_both_ways_and_only_between_the_two() -> None:
    assert fallback_of(fallback_of(ROCE) or ROCE) == ROCE
    assert fallback_of((*ROCE[:2], "efa", True)) is None
    assert find_profile(replace(H100.fabric, network="tcpx"), "fabric").borrowed == ()


def test_logs_of_one_source_on_the_same_wires_are_one_machine() -> None:
    row = {"source": "https://github.com/NVIDIA/nccl-tests/issues/309 (poster qoofyk, bare metal)"}
    assert published_in(row) == "https://github.com/NVIDIA/nccl-tests/issues/309"
    assert published_in({"source": "a report (stored-text id 7)"}) == "a report (stored-text id 7)"
    twin = replace(H100, name="twin", source=H100.source)
    assert machine_of(twin) == machine_of(H100)
    assert left_out([H100, twin], {}, HOPS) == []
    assert machine_of(replace(twin, source="elsewhere")) != machine_of(H100)


def test_the_spread_between_machines_is_what_the_other_machine_was_missed_by() -> None:
    slower = replace(H100, name="slower", source="elsewhere", seconds=H100.seconds * 1.3)
    found = left_out([H100, slower], {}, HOPS)
    assert len(found) == 2
    apart = spreads(found)
    assert set(apart) == set(SIZE_CLASSES)
    assert 0.1 < apart["large"] < 0.3, "log(1.3) of two machines, as a sigma that holds 80 %"
    assert of_platform(found, {"large": 1.0})["large"] == 1.0
    own = fit_nccl([H100], "nccl_own", applies_to=platform_of(H100))
    wide = widened(own, apart)
    which = next(which for which in own.classes if which.size == "large")
    assert wide.classes[which].sigma == pytest.approx(np.hypot(own.classes[which].sigma, apart["large"]), rel=1e-3)


def test_a_stranger_is_never_surer_than_another_machine_of_a_measured_kind() -> None:
    pooled = pooled_profile("node", "rccl")
    assert pooled.unseen["large"] > 0
    assert all(value.sigma >= pooled.unseen.get(which.size, 0.0) for which, value in pooled.classes.items())
    narrow = pooled.model_copy(
        update={"classes": {k: v.model_copy(update={"sigma": 0.001}) for k, v in pooled.classes.items()}}
    )
    assert min(v.sigma for v in at_least(narrow, {"small": 0.2, "middle": 0.2, "large": 0.1}).classes.values()) == 0.1


def test_gpus_that_talk_through_host_memory_lie_as_far_apart_as_their_hosts() -> None:
    log = LOGS["rtx4090_1x4_pcie_kalavai_docker_all_reduce"]
    assert min(value.sigma for value in fit_platform([log], "nccl_mine").classes.values()) >= 0.7


def test_one_host_whose_gpus_talk_through_its_memory_says_nothing_of_others() -> None:
    lone = LOGS["rtx4090_1x4_pcie_kalavai_docker_all_reduce"]
    assert not lone.fabric.peer_to_peer
    assert not [profile for profile in fit_all([lone]) if profile.applies_to is not None]
