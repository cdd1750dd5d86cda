"""Which algorithm and protocol a collective uses, how long it takes, and how sure that is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simulator.collectives import ALGORITHMS, bus_factor, candidates, collective_seconds
from simulator.errors import PlanError, UnknownNameError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.fabric import Fabric, fabric_of
from simulator.hardware.group_placement import describe_group, place_group, place_hop
from simulator.program.prices import PriceClass

MIB = 2.0**20
A100 = fabric_of(load_cluster("dgx_a100", 128))
H100 = fabric_of(load_cluster("dgx_h100", 128))


def bus(kind: str, size: float, ranks: int, nodes: int, fabric: Fabric) -> float:
    """Return the bus bandwidth in decimal gigabytes per second."""
    found = collective_seconds(kind, size, describe_group(ranks, nodes), fabric)
    return size / found.seconds * bus_factor(kind, ranks) / 1e9


def test_large_messages_reach_the_bandwidth_that_logs_show() -> None:
    assert 235 == pytest.approx(bus("all_reduce", 8192 * MIB, 8, 1, A100), rel=0.05)
    assert 189 == pytest.approx(bus("all_reduce", 4096 * MIB, 16, 2, A100), rel=0.05)
    assert 478 == pytest.approx(bus("all_reduce", 8192 * MIB, 8, 1, H100), rel=0.05)
    assert 360 == pytest.approx(bus("all_gather", 8192 * MIB, 8, 1, H100), rel=0.05)


def test_boxes_without_peer_access_go_through_the_host() -> None:
    box = fabric_of(load_cluster("rtx_4090_x4"))
    assert 6.0 == pytest.approx(bus("all_reduce", 1024 * MIB, 4, 1, box), rel=0.1), "0.19 of PCIe 4.0"
    direct = dataclasses.replace(box, peer_to_peer=True)
    assert bus("all_reduce", 1024 * MIB, 4, 1, direct) > 2 * bus("all_reduce", 1024 * MIB, 4, 1, box)


def test_hopper_takes_nvls_for_large_messages_in_a_node_and_not_for_small_ones() -> None:
    assert "nvls" == collective_seconds("all_reduce", 64 * MIB, describe_group(8), H100).algorithm
    assert "nvls" != collective_seconds("all_reduce", 1024.0, describe_group(8), H100).algorithm
    without = dataclasses.replace(H100, in_network_reduction=False)
    assert "nvls" != collective_seconds("all_reduce", 64 * MIB, describe_group(8), without).algorithm


def test_auto_is_the_quickest_of_all_that_can_be_asked_for() -> None:
    place = describe_group(16, 2)
    auto = collective_seconds("all_reduce", 4 * MIB, place, H100)
    times = {
        (c.algorithm, c.protocol): collective_seconds(
            "all_reduce", 4 * MIB, place, H100, c.algorithm, c.protocol
        ).seconds
        for c in candidates("all_reduce", place, H100)
    }
    assert auto.seconds == min(times.values()) == times[auto.algorithm, auto.protocol]
    assert len(set(times.values())) > 4


def test_scalar_and_array_forms_of_an_algorithm_agree() -> None:
    place, table = describe_group(16, 2), load_cost_table()
    for member in map(ALGORITHMS.get, ("ring", "tree", "pairwise")):
        for kind in member.kinds:
            for one in candidates(kind, place, A100, member.name):
                cost = member.cost(kind, place, A100, table, one.protocol)
                assert cost is not None
                plain = dataclasses.replace(one, latency=cost.latency, bandwidth=cost.bandwidth, ramp=0.0)
                sizes = np.array([1.0, 100.0, 3e4, 5e6, 1e9])
                got = member.seconds(kind, sizes, place, A100, one.protocol, table=table)
                np.testing.assert_allclose(got, [plain.seconds(s) for s in sizes], rtol=1e-12)


def test_more_bytes_never_take_less_time() -> None:
    sizes = np.geomspace(8, 2e10, 120)
    for kind, ranks, nodes in (
        ("all_reduce", 8, 1),
        ("all_reduce", 128, 16),
        ("all_gather", 16, 16),
        ("all_to_all", 16, 2),
    ):
        for fabric in (A100, H100):
            times = [collective_seconds(kind, float(s), describe_group(ranks, nodes), fabric).seconds for s in sizes]
            assert np.all(np.diff(times) > 0), (kind, ranks, nodes)


def test_no_bandwidth_exceeds_the_wires() -> None:
    assert bus("all_gather", 2.0**36, 16, 16, A100) < 25.0
    assert bus("send_recv", 2.0**36, 2, 2, H100) < 50.0
    assert bus("all_reduce", 2.0**36, 128, 16, A100) < 200.0


def test_groups_that_share_network_cards_are_slower_than_one_alone() -> None:
    p4d = load_cluster("p4d", 16)
    shared = place_group((("tp", 8), ("dp", 2)), ("dp",), p4d)
    ratio = collective_seconds("all_reduce", 2.0**30, shared, p4d).seconds
    assert 2 == pytest.approx(
        ratio / collective_seconds("all_reduce", 2.0**30, describe_group(2, 2), p4d).seconds, rel=0.1
    )


def test_a_pipeline_hop_over_one_card_takes_the_time_of_the_card() -> None:
    hop = place_hop((("tp", 8), ("pp", 16)), 0, 1, A100)
    seconds = collective_seconds("send_recv", 100e6, hop, A100).seconds
    assert 100e6 / 25e9 < seconds < 1.3 * 100e6 / 25e9


def test_measured_platforms_say_so_and_others_carry_a_wider_band() -> None:
    known = collective_seconds("all_reduce", 64 * MIB, describe_group(8), A100)
    unknown = collective_seconds(
        "all_reduce", 64 * MIB, describe_group(8), dataclasses.replace(A100, architecture="pascal")
    )
    assert (True, False) == (known.calibrated, unknown.calibrated)
    assert known.sigma < unknown.sigma
    assert PriceClass("all_reduce", "ring", "node") == known.price_class
    named = dataclasses.replace(A100, architecture="pascal", calibration=("nccl_ampere_nvlink",))
    assert "nccl_ampere_nvlink" == collective_seconds("all_reduce", 64 * MIB, describe_group(8), named).profile


def test_a_group_of_one_rank_takes_no_time() -> None:
    assert 0.0 == collective_seconds("all_reduce", 1e9, describe_group(1), A100).seconds


def test_wrong_questions_are_answered_with_the_way_out() -> None:
    place = describe_group(8)
    with pytest.raises(UnknownNameError, match="Did you mean 'all_reduce'"):
        collective_seconds("all_redcue", 1.0, place, A100)
    with pytest.raises(UnknownNameError, match="Did you mean 'tree'"):
        collective_seconds("all_reduce", 1.0, place, A100, algorithm="treee")
    with pytest.raises(UnknownNameError, match="ll128"):
        collective_seconds("all_reduce", 1.0, place, A100, protocol="ll12")
    with pytest.raises(
        PlanError, match="Algorithms that know all_gather: bruck, hierarchical, pat, recursive_doubling, ring"
    ):
        collective_seconds("all_gather", 1.0, place, A100, algorithm="tree")
    with pytest.raises(PlanError, match="no network"):
        collective_seconds("all_reduce", 1.0, describe_group(16, 2), fabric_of(load_cluster("dgx_a100", 8)))
    with pytest.raises(PlanError, match="not below zero"):
        collective_seconds("all_reduce", -1.0, place, A100)
    with pytest.raises(PlanError, match="8 GPUs"):
        collective_seconds("all_reduce", 1.0, describe_group(16), A100)


def test_a_send_inside_a_node_starts_on_few_channels_and_gets_more() -> None:
    """sendrecv of eight B200: 791, 797, 808 and 858 us for 64 to 512 MiB, then in proportion."""
    fabric = fabric_of(load_cluster("hgx_b200", 8))
    eight = [collective_seconds("send_recv", 2.0**k * MIB, describe_group(8), fabric).seconds for k in range(5, 13)]
    assert eight[1] == pytest.approx(2 * eight[0], rel=0.05)
    assert eight[1:5] == pytest.approx([eight[1]] * 4, rel=0.05)
    assert eight[6] == pytest.approx(2 * eight[5], rel=0.05)
    two = [collective_seconds("send_recv", size * MIB, describe_group(2), fabric).seconds for size in (64, 4096)]
    assert two[0] < eight[1] / 3, "two ranks have sixteen channels for each other from the start"
    assert two[1] == pytest.approx(eight[7], rel=0.01)
    across = candidates("send_recv", describe_group(16, 2), fabric_of(load_cluster("hgx_b200", 16)))
    assert not across[0].medium, "between nodes the cards decide"
