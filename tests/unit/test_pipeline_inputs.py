"""What of a graph stands in front of a pipeline: inputs, and not a first layer that has no weights."""

from __future__ import annotations

from simulator.planners.problems.pipeline import Level, make_pipeline
from simulator.workload.cost_graph import CostEdge, CostGraph, CostNode


def node(name: str, forward: float, backward: float) -> CostNode:
    return CostNode(
        name=name, kind=name, forward=forward, backward=backward, activation=1.0, parameters=0.0, memory=1.0
    )


def test_a_first_layer_without_weights_is_work_and_an_input_is_none() -> None:
    layers = (node("relu", 1.0, 2.0), node("pool", 1.0, 2.0))
    joined = CostEdge(source=0, target=1, bytes=1.0)
    graph = CostGraph(name="by_hand", nodes=layers, edges=(joined,))
    fed = CostGraph(
        name="fed",
        nodes=(node("Input", 5.0, 0.0), *layers),
        edges=(joined, CostEdge(source=1, target=2, bytes=1.0)),
    )
    for one in (graph, fed):
        assert 6.0 == make_pipeline(one, (Level(2, 1.0e9),)).one_device
