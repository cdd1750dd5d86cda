"""Graphs of costs: sums of published profiles, and files that are wrong."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from simulator.errors import SpecError, UnknownNameError
from simulator.importers.cost_graphs import graph_files, read_cost_graph
from simulator.workload.cost_graph import CostEdge, CostGraph, CostNode, CostWay
from tests.unit.pipedream_sums import PIPEDREAM_SUMS


@pytest.mark.parametrize(("name", "forward", "backward", "parameters"), PIPEDREAM_SUMS)
def test_profiles_of_pipedream_have_their_published_sums(
    name: str, forward: float, backward: float, parameters: float
) -> None:
    """Milliseconds and MB; the public repository's own sums."""
    graph = read_cost_graph(name)
    assert graph.forward * 1e3 == pytest.approx(forward, abs=0.05)
    assert graph.backward * 1e3 == pytest.approx(backward, abs=0.05)
    assert graph.parameters / 1e6 == pytest.approx(parameters, abs=0.05)


def test_a_training_graph_has_mates_of_both_directions() -> None:
    graph = read_cost_graph("bert24_training")
    assert graph.machine is not None
    assert (graph.machine.devices, graph.machine.hosts) == (6, 1)
    for colour in {node.belongs_to for node in graph.nodes}:
        assert [False, True] == sorted(node.passes_back for node in graph.nodes if node.belongs_to == colour)


@pytest.mark.parametrize("name", list(graph_files()))
def test_every_shipped_graph_is_read_in_order(name: str) -> None:
    graph = read_cost_graph(name)
    place = {node: number for number, node in enumerate(graph.order)}
    assert all(place[edge.source] < place[edge.target] for edge in graph.edges)


def test_a_file_is_read_where_it_lies(tmp_path: Path) -> None:
    text = gzip.decompress(graph_files()["vgg16"].read_bytes())
    (tmp_path / "mine.txt").write_bytes(text)
    assert read_cost_graph(tmp_path / "mine.txt").forward == read_cost_graph("vgg16").forward
    lists = b"n -- Split -- forward_compute_time=1.0, backward_compute_time=0.5, activation_size=[4.0; 6.0], parameter_size=0.0\n"
    (tmp_path / "lists.txt").write_bytes(lists)
    assert [node.activation for node in read_cost_graph(tmp_path / "lists.txt").nodes] == [10.0]
    (tmp_path / "spaces.txt").write_bytes(lists + lists.replace(b"n --", b"m --") + b"  n -- m\n")
    assert [(edge.source, edge.target) for edge in read_cost_graph(tmp_path / "spaces.txt").edges] == [(0, 1)]


def test_what_is_wrong_is_said_with_its_place(tmp_path: Path) -> None:
    node = "a -- X -- forward_compute_time=1.0, backward_compute_time=0.5, activation_size=4.0, parameter_size=0.0\n"
    small = {"id": 1, "fpgaLatency": 1, "cpuLatency": 2, "size": 3, "supportedOnFpga": 1, "isBackwardNode": 0}
    whole = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 9.0, "nodes": [small], "edges": []}
    edge = {"sourceId": 1, "destId": 7, "cost": 1.0}
    way = {"id": "plain", "timePerSample": 1, "parameterSize": 2, "memoryUsageA": 3, "memoryUsageB": 4}
    one = {"id": 1, "TMPCs": {"1": [way | {"syncTimeFw": {}, "syncTimeBw": {}}]}}
    ways = {"maxDevices": 2, "maxMemoryPerDevice": 9, "bandwidth": 5, "mbsInBatch": 4, "nodes": [one], "edges": []}
    loop = {"sourceId": 1, "destId": 1, "communicationCost": 1.0}
    for name, text, said in (
        ("x.txt", node + "\ta -- b\n", "line 2: an edge joins nodes of lines above"),
        ("x.txt", node + "nonsense\n", "line 2: expected"),
        ("x.txt", node.replace("=1.0", "=fast"), "line 1: "),
        ("x.txt", node + node, "names of nodes are unique"),
        ("x.txt", node.replace("=1.0", "=-1.0"), "forward of node 'a' is 0 or more, got -0.001"),
        ("x.txt", "hello", "is no graph of costs. Known: JSON of dnn-partitioning"),
        ("x.json", json.dumps(whole | {"edges": [edge]}), "edges[0]: no node has the id 7"),
        ("x.json", json.dumps(whole | {"nodes": [small, small]}), "nodes[1]: ids are unique"),
        ("x.json", json.dumps(whole | {"nodes": [small | {"fpgaLatency": "x"}]}), "fpgaLatency: expected a number"),
        ("x.json", json.dumps(whole | {"edges": [edge | {"destId": 1}]}), "'1' waits for itself"),
        ("x.json", json.dumps(whole | {"nodes": []}), "has one node or more, got none"),
        ("x.json", json.dumps(whole | {"maxFPGAs": 1.5}), "maxFPGAs is a whole number"),
        ("x.json", json.dumps(ways | {"nodes": [one, one]}), "nodes[1]: ids are unique"),
        (
            "x.json",
            json.dumps(ways | {"nodes": [{"id": 1, "TMPCs": {"0": []}}]}),
            "nodes[0]: TMPCs is an object by degrees",
        ),
        ("x.json", json.dumps(ways | {"nodes": [{"id": 1, "TMPCs": {}}]}), "nodes[0]: a node has one way to run it"),
        (
            "x.json",
            json.dumps(ways | {"nodes": [{"id": 1, "TMPCs": {"1": [way]}}]}),
            "TMPCs[1][0]: syncTimeFw is an object",
        ),
        ("x.json", json.dumps(ways | {"edges": [loop]}), "nodes[0]: TMPCs[1][0]: syncTimeFw: 1: expected a number"),
        ("x.json", json.dumps(ways | {"mbsInBatch": "many"}), "mbsInBatch is a whole number"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(SpecError) as raised:
            read_cost_graph(tmp_path / name)
        assert said in str(raised.value)
    with pytest.raises(UnknownNameError, match="Did you mean 'vgg19'"):
        read_cost_graph("vgg")


def test_a_graph_has_ways_for_all_nodes_or_for_none() -> None:
    way = CostWay(seconds=1.0)
    a, b = CostNode(name="a", ways=(way,)), CostNode(name="b", ways=(way,))
    edges = (CostEdge(source=0, target=1),)
    for nodes, some, said in (
        ((a, CostNode(name="b")), (), "all nodes have ways to run them or none has, but 'b'"),
        ((a, b), edges, "it has bytes for every edge"),
        ((CostNode(name="a", ways=(CostWay(tensor=0),)),), (), "its devices are 1 or more"),
        ((CostNode(name="a", ways=(CostWay(held=math.inf),)),), (), "seconds and bytes 0 or more"),
    ):
        with pytest.raises(SpecError, match=said):
            CostGraph(name="wrong", nodes=nodes, edges=some)
    with pytest.raises(SpecError, match="--problem hybrid"):
        CostGraph(name="two", nodes=(a, b), edges=()).refuse_ways()


def test_a_graph_without_some_nodes_keeps_the_other_edges() -> None:
    nodes = tuple(CostNode(name=name, forward=1.0) for name in "abc")
    graph = CostGraph(
        name="three", nodes=nodes, edges=(CostEdge(source=0, target=1), CostEdge(source=1, target=2, bytes=5.0))
    )
    less = graph.without([0])
    assert [node.name for node in less.nodes] == ["b", "c"]
    assert less.edges == (CostEdge(source=0, target=1, bytes=5.0),)
