"""The explicit fabric: which links there are, how wide they are, and that every route leads where it should."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric_graph import FabricGraph
from tests.fabric_graphs import build_fabric_graph, link_name, place_on_graph


def route(graph: FabricGraph, source: int, destination: int) -> list[str]:
    zero = np.array([0])
    found = graph.routes(np.array([source]), zero, np.array([destination]), zero, 1)
    return [link_name(graph, int(link)) for link in found.link]


def test_inside_a_node_a_flow_passes_two_ports() -> None:
    graph = build_fabric_graph(load_cluster("dgx_h100", 8))
    assert ["gpu 2 > switch 0", "switch 0 > gpu 5"] == route(graph, 2, 5)
    assert (0, 0.0, 16) == (graph.rails, graph.card_bandwidth, len(graph.bandwidth))


def test_a_rank_meets_its_peer_of_the_next_node_on_its_own_rail() -> None:
    graph = build_fabric_graph(load_cluster("dgx_h100", 16))
    assert ["card 0.3 > leaf 0.3", "leaf 0.3 > card 1.3"] == route(graph, 3, 11)


def test_to_another_rail_a_flow_crosses_nvswitch_first_and_without_pxn_the_spine() -> None:
    cluster = load_cluster("dgx_h100", 16)
    assert ["gpu 3 > switch 0", "switch 0 > gpu 6", "card 0.6 > leaf 0.6", "leaf 0.6 > card 1.6"] == route(
        build_fabric_graph(cluster), 3, 14
    )
    assert ["card 0.3 > leaf 0.3", "leaf 0.6 > card 1.6", "leaf 0.3 > spine", "spine > leaf 0.6"] == route(
        build_fabric_graph(cluster, proxies=False), 3, 14
    )


@pytest.mark.parametrize("topology", ["rails", "leaf_spine"])
@pytest.mark.parametrize(("name", "gpus"), [("dgx_h100", 64), ("p4d", 32), ("p5", 32), ("gb200_nvl72", 144)])
@pytest.mark.parametrize("proxies", [True, False])
def test_every_route_hangs_together_from_its_source_to_its_destination(
    name: str, gpus: int, topology: str, proxies: bool
) -> None:
    if name == "gb200_nvl72" and load_cluster(name, 72).network is None:
        pytest.skip("no network between racks in the data file")
    graph = build_fabric_graph(load_cluster(name, gpus), topology, 2, proxies=proxies)  # type: ignore[arg-type]
    draw = np.random.default_rng(0)
    for source, destination in draw.integers(0, gpus, (40, 2)).tolist():
        if source != destination:
            walk(graph, source, destination)


def walk(graph: FabricGraph, source: int, destination: int) -> None:
    """Follow the links by their names; a GPU and its own card are joined."""
    left = {text.split(" > ")[0]: text.split(" > ")[1] for text in route(graph, source, destination)}
    at, seen = f"gpu {source}", 0
    while at != f"gpu {destination}" or left:
        if at in left:
            at = left.pop(at)
        elif at.startswith("gpu"):
            rank = np.array([int(at.split()[1])])
            at = f"card {graph.domain_of(rank)[0]}.{graph.rail_of(rank)[0]}"
        elif at.startswith("card"):
            ranks = np.arange(graph.world_size)
            rails = [f"card {d}.{r}" for d, r in zip(graph.domain_of(ranks), graph.rail_of(ranks), strict=True)]
            assert at == rails[destination]
            at = f"gpu {destination}"
        seen += 1
        assert seen < 12, (source, destination, at, left)


def test_links_are_as_wide_as_the_data_sheets_say() -> None:
    cluster = load_cluster("p5", 64)
    graph = build_fabric_graph(cluster, domains_per_pod=4, oversubscription=2.0)
    assert cluster.link.bandwidth == graph.bandwidth[0]
    assert cluster.node.nics * cluster.network.bandwidth == pytest.approx(8 * graph.card_bandwidth)  # type: ignore[union-attr]
    uplinks = [i for i in range(len(graph.bandwidth)) if link_name(graph, i).endswith("> spine")]
    assert 16 == len(uplinks)
    assert 4 * graph.card_bandwidth / 2 == pytest.approx(graph.bandwidth[uplinks[0]])


def test_four_cards_serve_eight_gpus_two_by_two() -> None:
    graph = build_fabric_graph(load_cluster("p4d", 16))
    assert [0, 0, 1, 1, 2, 2, 3, 3] == graph.rail_of(np.arange(8)).tolist()
    assert ["card 0.0 > leaf 0.0", "leaf 0.0 > card 1.0"] == route(graph, 0, 9)


def test_a_group_is_placed_by_the_domains_it_touches() -> None:
    graph = build_fabric_graph(load_cluster("dgx_h100", 32))
    place = place_on_graph(graph, np.array([0, 1, 8, 9, 16]))
    assert (5, 3, 2, 1) == (place.ranks, place.nodes, place.ranks_per_node, place.fewest_per_node)
    with pytest.raises(PlanError, match="once each"):
        place_on_graph(graph, np.array([1, 1]))


def test_what_cannot_be_is_refused() -> None:
    cluster = load_cluster("dgx_h100", 16)
    with pytest.raises(PlanError, match="ranks 0 to 15"):
        route(build_fabric_graph(cluster), 0, 16)
