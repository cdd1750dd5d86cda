"""Which profile speaks for which wires, how sure it is at which size, and what a network's own latency does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simulator.collectives import collective_seconds, profile_of
from simulator.errors import SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.coefficients import (
    SIZE_CLASSES,
    AppliesTo,
    PairName,
    Profile,
    Residual,
    ResidualClass,
    library_of,
    load_cost_table,
    pooled_profile,
)
from simulator.hardware.fabric import Fabric, fabric_of
from simulator.hardware.group_placement import describe_group
from simulator.specs import validate_spec

TWO_NODES = describe_group(16, 2)


def wires(name: str, gpus: int = 16) -> Fabric:
    return fabric_of(load_cluster(name, gpus))


def test_tcpx_and_tcpxo_are_two_platforms() -> None:
    found = {name: profile_of(wires(name), TWO_NODES).name for name in ("a3_high", "a3_mega")}
    assert {"a3_high": "nccl_hopper_nvlink_tcpx", "a3_mega": "nccl_hopper_nvlink_tcpxo"} == found
    slow, quick = (collective_seconds("all_gather", 2.0**20, TWO_NODES, wires(name)) for name in found)
    assert slow.seconds > 3 * quick.seconds, "a copy through the host's memory against a transport of its own"


def test_a_rack_on_one_nvlink_is_no_node_of_eight() -> None:
    rack, node = wires("gb200_nvl72", 72), wires("hgx_b200", 8)
    assert ("nvlink_rack", "nvlink") == (AppliesTo.of(rack, "node").intra, AppliesTo.of(node, "node").intra)
    assert "nccl_blackwell_nvlink_rack" == profile_of(rack, describe_group(72, 1, level="rack")).name
    assert "nvlink" == AppliesTo.of(wires("gb200_nvl72", 4), "node").intra, "one tray of the rack"


def test_amds_library_inside_a_node_stands_alone() -> None:
    assert ("rccl", "nccl") == (library_of("cdna4", "node"), library_of("cdna4", "fabric"))
    unknown = replace(wires("mi300x_x8", 8), architecture="cdna2")
    assert "nccl_any_rccl_node" == profile_of(unknown, describe_group(8)).name
    assert "nccl_any_node" == profile_of(replace(unknown, architecture="ada"), describe_group(8)).name


def test_a_slower_network_makes_small_messages_slower_and_leaves_large_ones_alone() -> None:
    base = replace(wires("dgx_h100"), architecture="ada", network="infiniband")
    slow = replace(base, network="efa")
    hop = pooled_profile("fabric").hop("efa")
    assert hop > load_cost_table().network_latency["efa"] / 2
    small = [collective_seconds("all_reduce", 1024.0, TWO_NODES, fabric).seconds for fabric in (base, slow)]
    large = [collective_seconds("all_reduce", 2.0**33, TWO_NODES, fabric).seconds for fabric in (base, slow)]
    assert small[1] - small[0] > hop
    assert large[0] == pytest.approx(large[1], rel=0.02)


def test_a_users_own_latency_comes_on_top() -> None:
    plain = wires("p5")
    far = replace(plain, network_latency=1e-4)
    assert collective_seconds("all_reduce", 8.0, TWO_NODES, far).seconds > 1e-4 + (
        collective_seconds("all_reduce", 8.0, TWO_NODES, plain).seconds
    )


def test_a_file_names_pairs_and_classes_in_words_that_are_read_once() -> None:
    said = profile_of(wires("dgx_h100"), TWO_NODES).model_dump(exclude_none=True)
    assert "ring:ll128" in said["pairs"]
    assert {"all_reduce:tree", "all_reduce:tree:small"} <= set(said["classes"])
    read = Profile(**said)
    assert {PairName, ResidualClass} == {type(key) for key in (*read.pairs, *read.classes)}
    assert said == read.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pairs": {"ring": {"latency": 1.0, "bandwidth": 1.0, "ramp": 0.0}}}, 'expected "algorithm:protocol"'),
        ({"borrowed": ["ring:ll:large"]}, 'expected "algorithm:protocol"'),
        ({"offers": [8]}, 'expected "algorithm:protocol"'),
        ({"classes": {"all_reduce": {}}}, 'expected "kind:algorithm" or "kind:algorithm:size"'),
    ],
)
def test_a_key_of_another_form_is_refused(changes: dict[str, object], said: str) -> None:
    data = profile_of(wires("dgx_h100"), TWO_NODES).model_dump(exclude_none=True)
    with pytest.raises(SpecError, match=said):
        validate_spec(data | changes, Profile, "mine.toml", from_file=False)


def test_how_sure_depends_on_the_size_where_that_was_measured() -> None:
    profile = profile_of(wires("dgx_h100"), TWO_NODES)
    assert {which.size for which in profile.classes if which.size} <= set(SIZE_CLASSES)
    every, one = ResidualClass("reduce", "ring"), Residual(points=9, residual_p50=0.1, residual_p95=0.2, sigma=0.3)
    mine = profile.model_copy(
        update={"classes": {every: one, every._replace(size="large"): one.model_copy(update={"sigma": 0.1})}}
    )
    assert [0.3, 0.3, 0.1] == [mine.residual("reduce", "ring", size).sigma for size in (8.0, 2.0**20, 2.0**24)]
    assert mine.everything == mine.residual("gather", "direct", 8.0)
    assert not mine.measured("all_reduce", "ring", "ll", 1024.0)


def test_a_kind_that_a_platforms_logs_do_not_hold_is_no_surer_than_anywhere() -> None:
    fabric = wires("dgx_h100")
    held = {which.kind for which in profile_of(fabric, TWO_NODES).classes}
    assert "all_to_all" not in held
    time = collective_seconds("all_to_all", 2.0**24, TWO_NODES, fabric)
    assert time.sigma >= pooled_profile("fabric").residual("all_to_all", time.algorithm, 2.0**24).sigma


def test_a_rings_kin_tell_how_well_an_unmeasured_kind_is_known() -> None:
    """H100 on RoCE has logs of all_gather only; its ring sends the same pieces for reduce_scatter, its tree does not."""
    fabric, size = wires("meta_h100_roce"), 2.0**30
    profile = profile_of(fabric, TWO_NODES)
    assert not {ResidualClass(kind, "ring") for kind in ("reduce_scatter", "all_reduce")} & set(profile.classes)
    kin = collective_seconds("all_gather", size, TWO_NODES, fabric, "ring", "simple").sigma
    found = collective_seconds("reduce_scatter", size, TWO_NODES, fabric, "ring", "simple").sigma
    assert kin < found == pytest.approx(math.hypot(kin, load_cost_table().between_kinds))
    unlike = collective_seconds("all_reduce", size, TWO_NODES, fabric, "tree", "simple").sigma
    assert unlike >= pooled_profile("fabric").residual("all_reduce", "tree", size).sigma
