"""The verifier of layers' graphs: what is wrong is said with the operation, the tensor and the dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from simulator.errors import GraphError
from simulator.testing.block_contract import small_model
from simulator.workload.counts import model_graph
from simulator.workload.graph import Dim, LayerGraph, Op, Product, Tensor
from simulator.workload.verify import verify

GRAPH = model_graph(small_model(), "layer")


def place(label: str) -> int:
    return [op.label for op in GRAPH.ops].index(label)


def changed(label: str, change: Callable[[Op], Op]) -> LayerGraph:
    i = place(label)
    return replace(GRAPH, ops=(*GRAPH.ops[:i], change(GRAPH.ops[i]), *GRAPH.ops[i + 1 :]))


def resized(tensor: Tensor, name: str, size: int) -> Tensor:
    return tensor.view(*(Dim(name, size) if d.name == name else d for d in tensor.dims))


def without(label: str) -> LayerGraph:
    return replace(GRAPH, ops=tuple(op for op in GRAPH.ops if op.label != label))


def narrower(op: Op) -> Op:
    return replace(op, weights=(resized(op.weights[0], "ffn", 255),))


def other_depth(op: Op) -> Op:
    assert isinstance(op, Product)
    return replace(op, weights=(op.weights[0].view(Dim("width", 256), *op.weights[0].dims[1:]),))


CASES = [
    (without("attention"), "operation 'projection' reads 'attention output', which nothing before it makes"),
    (
        replace(GRAPH, ops=GRAPH.ops[::-1]),
        "operation 'mlp residual' reads 'mlp down output', which nothing before it makes",
    ),
    (
        replace(GRAPH, ops=(*GRAPH.ops, GRAPH.ops[-1])),
        "operation 'mlp residual' makes 'mlp residual output', which is made before",
    ),
    (
        changed("mlp down", narrower),
        "operation 'mlp down' joins 'down input' with ffn = 256 and 'mlp down weight' with ffn = 255",
    ),
    (
        changed("mlp down", other_depth),
        "operation 'mlp down' sums over ffn of 'down input', which 'mlp down weight' lacks",
    ),
    (
        changed("mlp down", lambda op: replace(op, inputs=(resized(op.inputs[0], "ffn", 128),))),
        "operation 'mlp down' reads 'down input' with ffn = 128, but it is made with 256",
    ),
    (
        changed("mlp down", lambda op: replace(op, weights=())),
        "operation 'mlp down' has 1 outputs for 0 right operands",
    ),
    (
        replace(GRAPH, weights=(*GRAPH.weights, Tensor("spare", (Dim("hidden", 64),), 2.0, "vector"))),
        "no operation reads weight 'spare'",
    ),
    (replace(GRAPH, outputs=()), "operation 'mlp residual' makes 'mlp residual output', which nobody reads or keeps"),
    (replace(GRAPH, outputs=(Tensor("loss", (), 4.0),)), "its output 'loss' is made by no operation"),
    (
        changed("mlp norm", lambda op: replace(op, keeps=(replace(op.keeps[0], tensor=Tensor("ghost", (), 2.0)),))),
        "operation 'mlp norm' keeps 'ghost', which nothing before it makes",
    ),
    (
        changed(
            "attention residual", lambda op: replace(op, inputs=(op.inputs[0], resized(op.inputs[1], "hidden", 64)))
        ),
        "",
    ),
]


@pytest.mark.parametrize(("graph", "message"), CASES, ids=[message[:60] or "whole" for _, message in CASES])
def test_a_graph_that_does_not_fit_is_refused(graph: LayerGraph, message: str) -> None:
    if not message:
        return verify(graph)
    with pytest.raises(GraphError) as caught:
        verify(graph)
    assert f"graph of 'layer': {message}" == str(caught.value)


def test_products_follow_from_dimensions() -> None:
    shapes = {op.label: op.shape for op in GRAPH.ops if isinstance(op, Product)}
    assert {
        "qkv": (1, 128, 128, 64),
        "projection": (1, 128, 64, 64),
        "mlp up": (1, 128, 512, 64),
        "mlp down": (1, 128, 64, 256),
    } == shapes


def test_every_tensor_has_one_maker_and_its_readers() -> None:
    made = [t.name for op in GRAPH.ops for t in op.outputs]
    read = {t.name: [i for i, op in enumerate(GRAPH.ops) if t in op.inputs] for op in GRAPH.ops for t in op.inputs}
    assert len(made) == len(set(made))
    assert ["attention residual output"] == [name for name in made if len(read.get(name, ())) == 2]
    assert [place("attention norm"), place("attention residual")] == read["hidden states"]
