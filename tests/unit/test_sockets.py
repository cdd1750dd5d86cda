"""Cards on PCIe behind two sockets: what passes between them is shared, and narrower than the links."""

from __future__ import annotations

import pytest

from simulator.collectives import collective_seconds
from simulator.hardware.cluster import ClusterChanges, load_cluster
from simulator.hardware.fabric import Fabric, fabric_of
from simulator.hardware.group_placement import describe_group, place_group, place_hop

GIB = 2.0**30


def box() -> Fabric:
    return fabric_of(load_cluster("a100_pcie_x8", 8))


def bus_bandwidth(kind: str, tensor: int, axis: str) -> float:
    """Of the groups along an axis of tensor x data on eight cards [GB/s]."""
    place = place_group((("tensor", tensor), ("data", 8 // tensor)), (axis,), box())
    n = place.ranks
    return (
        GIB
        * (2 if kind == "all_reduce" else 1)
        * (n - 1)
        / n
        / collective_seconds(kind, GIB, place, box()).seconds
        / 1e9
    )


@pytest.mark.parametrize(
    ("kind", "tensor", "axis", "measured"),
    [  # MooreThreads/SimuMax configs/system/a100_pcie.json: 30 GB/s times its factors, and dp_fixed_bw of strided groups
        ("all_gather", 2, "tensor", 20.6),
        ("all_gather", 4, "tensor", 20.7),
        ("all_gather", 8, "tensor", 13.5),
        ("all_reduce", 8, "tensor", 12.5),
        ("all_to_all", 8, "tensor", 8.3),
        ("all_gather", 2, "data", 7.65),
        ("reduce_scatter", 2, "data", 7.0),
        ("all_gather", 4, "data", 4.0),
        ("reduce_scatter", 4, "data", 3.9),
    ],
)
def test_groups_that_pass_between_sockets_share_what_eight_a100_measured(
    kind: str, tensor: int, axis: str, measured: float
) -> None:
    """Within 30 %; the links alone say 23.7 GB/s of all of them."""
    assert bus_bandwidth(kind, tensor, axis) == pytest.approx(measured, rel=0.3)


def test_stages_on_different_sockets_share_what_passes_between_them() -> None:
    axes = (("tensor", 2), ("pp", 4))

    assert [place_hop(axes, i, i + 1, box()).between_sockets for i in range(3)] == [0, 2, 0]


def test_a_lone_group_passes_between_sockets_where_one_does_not_hold_it() -> None:
    assert [describe_group(n, fabric=box()).between_sockets for n in (2, 4, 6, 8)] == [0, 0, 1, 1]
    assert describe_group(2, concurrent=4, fabric=box()).between_sockets == 0


def test_cards_joined_by_nvlink_do_not_pass_by_their_sockets() -> None:
    joined = fabric_of(load_cluster("a100_pcie_x8", 8, ClusterChanges(link="nvlink3")))

    assert joined.socket_bandwidth == 0.0
    assert place_group((("x", 8),), ("x",), joined).between_sockets == 0
