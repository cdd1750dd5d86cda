"""Where groups of ranks lie decides which wires they use and with whom they share them."""

from __future__ import annotations

import itertools

import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import GroupPlacement, describe_group, place_group, place_hop

AXES = (("tp", 8), ("cp", 1), ("dp", 2), ("pp", 2))


def test_tensor_parallel_of_eight_stays_in_the_node() -> None:
    place = place_group(AXES, ("tp",), 8)
    assert (8, 1, 8, "node", 1) == (place.ranks, place.nodes, place.ranks_per_node, place.level, place.concurrent)
    assert "all 4 replicas stay in the node" == place.text


def test_data_parallel_with_stride_eight_leaves_the_node_eight_groups_at_once() -> None:
    place = place_group(AXES, ("dp",), 8)
    assert (2, 2, 1, "fabric", 8) == (place.ranks, place.nodes, place.ranks_per_node, place.level, place.concurrent)
    assert "16 of 16 replicas leave the node" == place.text


def test_axes_of_size_one_and_the_order_of_the_group_change_nothing() -> None:
    assert place_group(AXES, ("dp",), 8) == place_group(AXES, ("dp", "cp"), 8)
    assert place_group(AXES, ("tp", "dp"), 8) == place_group(AXES, ("dp", "tp"), 8)


def test_the_slowest_replica_counts_when_some_cross_a_node_boundary() -> None:
    place = place_group((("tp", 6), ("dp", 4)), ("tp",), 8)
    assert (2, "2 of 4 replicas leave the node") == (place.nodes, place.text)
    assert 2 == place.fewest_per_node


@pytest.mark.parametrize("sizes", [(2, 3, 4), (4, 4, 2), (1, 8, 3), (3, 5, 2), (16, 2, 2)])
@pytest.mark.parametrize("node", [1, 4, 8])
def test_agrees_with_counting_every_rank(sizes: tuple[int, int, int], node: int) -> None:
    axes = tuple(zip(("tp", "dp", "pp"), sizes, strict=True))
    for group in (("tp",), ("dp",), ("pp",), ("tp", "dp"), ("tp", "pp"), ("dp", "pp")):
        expected = _count(dict(axes), group, node)
        place = place_group(axes, group, node)
        assert expected == (place.ranks, place.nodes, place.leaving, place.replicas, place.concurrent)


def _count(sizes: dict[str, int], group: tuple[str, ...], node: int) -> tuple[int, int, int, int, int]:
    """Return the same figures from lists of world ranks."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, coordinates in enumerate(itertools.product(*(range(s) for s in reversed(sizes.values())))):
        place = dict(zip(sizes, reversed(coordinates), strict=True))
        groups.setdefault(tuple(v for k, v in place.items() if k not in group), []).append(rank)
    nodes = [{rank // node for rank in ranks} for ranks in groups.values()]
    most = max(map(len, nodes))
    world = sum(map(len, groups.values()))
    sharing = max(sum(n in held for held in nodes) for n in range(-(-world // node)))
    leaving = sum(len(held) > 1 for held in nodes)
    return len(next(iter(groups.values()))), most, leaving, len(groups), sharing if most > 1 else 1


def test_one_hundred_thousand_ranks_are_placed() -> None:
    place = place_group((("tp", 8), ("dp", 781), ("pp", 16)), ("dp",), 8)
    assert (781, 128) == (place.nodes, place.replicas)


def test_pipeline_hops_share_the_cards_of_a_node() -> None:
    hop = place_hop(AXES, 0, 1, 8)
    assert ("fabric", 8, 2) == (hop.level, hop.concurrent, hop.nodes)
    inside = place_hop((("tp", 2), ("pp", 4)), 0, 1, 8)
    assert ("node", 1) == (inside.level, inside.nodes)
    across = place_hop((("tp", 2), ("pp", 4), ("dp", 2)), 3, 0, 8)
    assert "all 4 replicas stay in the node" == across.text


def test_a_rack_on_one_link_counts_as_one_domain() -> None:
    cluster = load_cluster("gb200_nvl72", 72)
    place = place_group((("tp", 8), ("dp", 9)), ("tp",), cluster)
    assert ("rack", 1) == (place.level, place.nodes)
    assert "node" == place_group((("tp", 4), ("dp", 18)), ("tp",), cluster).level


def test_a_groups_share_of_the_network_cards() -> None:
    fabric = fabric_of(load_cluster("dgx_a100", 16))
    card = fabric.card_bandwidth
    assert card == place_group((("tp", 8), ("dp", 2)), ("dp",), fabric).outer_bandwidth(fabric)
    assert 8 * card == place_group((("dp", 16),), ("dp",), fabric).outer_bandwidth(fabric)
    p4d = fabric_of(load_cluster("p4d", 16))
    assert p4d.card_bandwidth / 2 == place_group((("tp", 8), ("dp", 2)), ("dp",), p4d).outer_bandwidth(p4d)
    assert p4d.card_bandwidth == describe_group(2, 2).outer_bandwidth(p4d)


def test_errors_name_the_axis_and_the_rank() -> None:
    with pytest.raises(PlanError, match="no mesh axis 'ep'"):
        place_group(AXES, ("ep",), 8)
    with pytest.raises(PlanError, match="pipeline rank must be 0 to 1, got 2"):
        place_hop(AXES, 0, 2, 8)
    with pytest.raises(PlanError, match="multiple of nodes"):
        describe_group(9, 2)


def test_a_placement_is_a_value() -> None:
    assert hash(GroupPlacement(ranks=8)) == hash(GroupPlacement(ranks=8))
