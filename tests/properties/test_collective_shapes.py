"""Curves of time over size, on every shipped cluster: they rise, and never faster than the wires allow."""

from __future__ import annotations

import itertools

import pytest

from simulator.collectives import candidates, collective_seconds
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import describe_group
from simulator.specs import names

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
SIZES = [2.0**k for k in range(3, 34)]


def places(name: str) -> list[tuple[object, object]]:
    found = []
    for nodes in (1, 2, 4, 16):
        try:
            cluster = load_cluster(name, load_cluster(name).node.gpus * nodes)
        except SpecError:
            continue
        fabric = fabric_of(cluster)
        domains = -(-cluster.world_size // fabric.domain_size)
        if cluster.world_size > 1 and cluster.world_size % domains == 0:
            found.append((fabric, describe_group(cluster.world_size, domains)))
    return found


@pytest.mark.parametrize("name", names("clusters"))
def test_time_rises_with_size_and_wires_are_not_outrun(name: str) -> None:
    for (fabric, place), kind in itertools.product(places(name), KINDS):
        try:
            times = [collective_seconds(kind, size, place, fabric).seconds for size in SIZES]  # type: ignore[arg-type]
        except PlanError:
            continue
        where = (name, place, kind)
        assert all(0 < time < 1e4 for time in times), where
        assert all(later >= time for time, later in zip(times, times[2:], strict=False)), where
        slope = (SIZES[-1] - SIZES[-2]) / (times[-1] - times[-2])
        inside = fabric.intra_bandwidth if place.ranks_per_node > 1 else 0.0  # type: ignore[attr-defined]
        assert slope < 2.2 * max(inside, fabric.network_bandwidth * place.ranks_per_node), where  # type: ignore[attr-defined]


def test_trees_win_small_messages_over_many_nodes_and_rings_win_large_ones_on_few() -> None:
    fabric = fabric_of(load_cluster("dgx_a100", 512))
    many = describe_group(512, 64)

    def least(algorithm: str, size: float, place: object = many) -> float:
        return min(c.seconds(size) for c in candidates("all_reduce", place, fabric, algorithm))  # type: ignore[arg-type]

    assert least("tree", 2.0**12) < least("ring", 2.0**12) / 4
    assert least("ring", 2.0**32, describe_group(128, 16)) < least("tree", 2.0**32, describe_group(128, 16))
    assert least("ring", 2.0**30, describe_group(16, 2)) < 1.1 * least("tree", 2.0**30, describe_group(16, 2))
