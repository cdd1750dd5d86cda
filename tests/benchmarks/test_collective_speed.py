"""Speed of collectives: closed form, a table of thousands of points, and steps of 4,096 ranks (`pytest -m benchmark -s`)."""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest

from simulator.collectives import ALGORITHMS, candidates, collective_seconds
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import describe_group
from tests.differential.shared_links import simulate_collective
from tests.fabric_graphs import build_fabric_graph

pytestmark = pytest.mark.benchmark
RANKS = 4096


def test_closed_form_of_a_large_all_reduce() -> None:
    """A closed form does not count ranks: many cost about what few do."""
    fabric, spent = fabric_of(load_cluster("dgx_h100", RANKS)), {}
    for ranks in (16, RANKS):
        place = describe_group(ranks, ranks // 8)
        collective_seconds("all_reduce", 1.0, place, fabric)
        start = time.process_time()
        for size in range(1000):
            collective_seconds("all_reduce", 1e6 + size, place, fabric)
        spent[ranks] = (time.process_time() - start) / 1000
        print(f"\nclosed form of {ranks} ranks, warm: {spent[ranks]:.1e} s")


@pytest.mark.parametrize("name", ["ring", "tree", "nvls_tree", "rabenseifner", "hierarchical"])
def test_steps_of_a_large_all_reduce(name: str) -> None:
    graph = build_fabric_graph(load_cluster("dgx_h100", RANKS))
    start = time.perf_counter()
    found = simulate_collective("all_reduce", 1e9, [range(RANKS)], graph, name, "steps")
    spent = time.perf_counter() - start
    print(f"\n{name}, steps of {RANKS} ranks: {spent:.2f} s for {found.rounds} rounds, {found.solved} solved")
    assert found.solved <= found.rounds
    assert found.solved < RANKS / 8, "rounds of the same pattern are solved once"


def test_a_table_of_4096_points() -> None:
    fabric = fabric_of(load_cluster("dgx_h100", RANKS))
    points = 0
    start = time.perf_counter()
    names = [m.name for m in ALGORITHMS.members.values() if "all_reduce" in m.kinds]
    for nodes, name in itertools.product((1, *(2**k for k in range(1, 10))), names):
        place = describe_group(8 * nodes, nodes)
        try:
            candidates("all_reduce", place, fabric, name)
        except PlanError:
            continue
        for k in range(4096 // (10 * len(names)) + 14):
            collective_seconds("all_reduce", 2.0 ** (3 + k / 2), place, fabric, name)
            points += 1
    spent = time.perf_counter() - start
    print(f"\ntable of {points} points over {len(names)} algorithms: {spent:.2f} s, nothing warm")
    assert points >= 4096


def test_groups_that_cross_on_a_topology() -> None:
    """Eight rings of 512 ranks side by side, and one all_to_all of 512, on rails with a narrow spine."""
    found = load_cluster("dgx_h100", RANKS)
    narrow = {"topology": "rails", "nodes_per_pod": 32, "oversubscription": 2.0}
    fabric = fabric_of(dataclasses.replace(found, spec=found.spec.model_copy(update=narrow)).resized(RANKS))
    for kind, place in (
        ("all_reduce", describe_group(512, 512, 8, fabric=fabric)),
        ("all_to_all", describe_group(512, 64, fabric=fabric)),
    ):
        spent = []
        for size in (2.0**26, 2.0**27):
            start = time.process_time()
            collective_seconds(kind, size, place, fabric)
            spent.append(time.process_time() - start)
        print(f"\n{kind} of {place.ranks} ranks, {place.concurrent} groups: {spent[0]:.2f} s, then {spent[1]:.1e} s")
        assert spent[1] < spent[0] / 20, "the pattern of links is solved once for all sizes"
