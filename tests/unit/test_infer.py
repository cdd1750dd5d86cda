"""Layouts from a few annotations: Megatron from five, conflicts, what stays open, and how long it takes."""

from __future__ import annotations

import time

import pytest

from simulator.errors import LayoutError, UnknownNameError
from simulator.partition.derive import derive
from simulator.partition.infer import Inferred, infer
from simulator.partition.layout import Layout, Shard, rule
from simulator.partition.placements import lay_out
from simulator.partition.words import layout_of
from simulator.studies.layout_figures import Block, model_blocks
from simulator.workload.graph import Dim, Kernel, LayerGraph, Product, Tensor
from simulator.workload.model import load_model

MESH = (("rows", 8), ("cols", 8))
FEW = {
    "embedding token ids": {"rows": "batch"},
    "token table": {"cols": "vocabulary"},
    "head weight": {"cols": "vocabulary"},
    "qkv weight of q": {"cols": "heads"},
    "mlp up weight": {"cols": "ffn"},
}


def blocks(name: str = "gpt3_175b") -> tuple[Block, ...]:
    return model_blocks(load_model(name), 8, 2048, 51200)


def inferred(name: str = "gpt3_175b") -> Inferred:
    return infer([block.graph for block in blocks(name)], MESH, FEW)


def test_five_annotations_make_data_and_tensor_parallelism_of_a_whole_model() -> None:
    found = inferred()
    maps = {"batch": ("rows",), "heads": ("cols",), "ffn": ("cols",), "vocabulary": ("cols",)}
    for block in blocks():
        layout = layout_of(maps, MESH, [b.graph for b in blocks()])
        right = lay_out(block.graph, layout).tensors
        assert right == {n: dict(p) for n, p in found.graphs[block.kind].tensors.items()}
        by_hand, followed = (
            [op.collectives for op in derive(block.graph, way)] for way in (layout, found.graphs[block.kind])
        )
        assert by_hand == followed
    assert () == found.conflicts


def test_what_nobody_asked_for_stays_whole_and_is_said() -> None:
    found = inferred()
    assert {"mlp norm scale", "positions"} <= set(found.open)
    assert "down input" not in found.open


def test_layers_that_repeat_are_looked_at_once() -> None:
    deep, shallow = load_model("gpt3_175b"), load_model("gpt3_13b")
    assert (96, 40) == (deep.layers, shallow.layers)
    graphs = [block.graph for block in blocks()]
    times = []
    for _ in range(5):
        start = time.process_time()
        found = infer(graphs, MESH, FEW)
        times.append(time.process_time() - start)
    print(f"propagation over 96 layers: {min(times) * 1e3:.1f} ms")
    assert 3 == len(graphs)
    assert found.sweeps == inferred("gpt3_13b").sweeps <= 6


B, A, C = Dim("b", 8), Dim("a", 8), Dim("c", 8)


def chain() -> LayerGraph:
    """z = x + y, out = z w."""
    x, y, z, out = (Tensor(n, d, 2.0) for n, d in (("x", (B, A)), ("y", (B, A)), ("z", (B, A)), ("out", (B, C))))
    w = Tensor("w", (A, C), 2.0, "weight")
    ops = (
        Kernel(label="sum", inputs=(x, y), outputs=(z,), moves=()),
        Product(label="product", inputs=(z,), weights=(w,), outputs=(out,)),
    )
    return LayerGraph(kind="chain", inputs=(x, y), ops=ops, outputs=(out,), weights=(w,))


def places(found: Inferred) -> dict[str, dict[str, str]]:
    laid = found.graphs["chain"].tensors
    return {name: {a: p.dim for a, p in on.items() if isinstance(p, Shard)} for name, on in laid.items() if on}


def test_it_flows_forward_and_backward() -> None:
    found = infer([chain()], MESH, {"out": {"rows": "b"}})
    assert {name: {"rows": "b"} for name in "xyz"} | {"out": {"rows": "b"}} == places(found)
    found = infer([chain()], MESH, {"x": {"cols": "a"}})
    assert {name: {"cols": "a"} for name in "xyzw"} == places(found)
    assert [("all_reduce", "forward")] == [
        (c.kind, c.direction) for c in derive(chain(), found.graphs["chain"])[1].collectives
    ]


def test_component_wise_operations_come_before_einsums() -> None:
    """z hears from x, beside it in a sum, before it hears from w, of a product."""
    found = infer([chain()], MESH, {"x": {"cols": "b"}, "w": {"cols": "a"}})
    assert {"cols": "b"} == places(found)["z"] == places(found)["y"]
    assert [("z", "cols", "b", "a")] == [
        (c.tensor, c.axis, c.taken, c.left) for c in found.conflicts if c.tensor == "z"
    ]


def test_in_a_conflict_more_divided_dimensions_win() -> None:
    found = infer([chain()], MESH, {"x": {"cols": "b"}, "y": {"cols": "a", "rows": "b"}})
    assert {"cols": "a", "rows": "b"} == places(found)["z"]
    assert any((c.taken, c.left) == ("a", "b") for c in found.conflicts if c.tensor == "z")
    assert {"cols": "b"} == places(found)["x"]


def test_an_empty_annotation_keeps_a_tensor_whole() -> None:
    found = infer([chain()], MESH, {"x": {"rows": "b"}, "out": {}})
    assert "out" not in places(found)


def test_what_does_not_divide_does_not_spread() -> None:
    found = infer([chain()], (("rows", 8), ("cols", 3)), {"x": {"rows": "b"}})
    assert {"rows": "b"} == places(found)["out"]
    with pytest.raises(LayoutError, match=r"lays a = 8 of 'x' on the 3 ranks .* Nearest: 2 ranks"):
        infer([chain()], (("rows", 8), ("cols", 3)), {"x": {"cols": "a"}})


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"xx": {"rows": "b"}}, "no tensor 'xx'"),
        ({"x": {"row": "b"}}, "no mesh axis 'row'. Did you mean 'rows'"),
        ({"x": {"rows": "c"}}, "no dimension of 'x' 'c'"),
    ],
)
def test_annotations_of_what_is_not_there_are_refused(annotations: dict[str, dict[str, str]], said: str) -> None:
    with pytest.raises(UnknownNameError, match=said):
        infer([chain()], MESH, annotations)


def test_keys_flow_with_their_heads_but_not_with_the_tokens_of_queries() -> None:
    found = infer(
        [block.graph for block in blocks("llama3_8b")], MESH, {"q, turned": {"rows": "sequence", "cols": "heads"}}
    )
    layer = found.graphs["layer"].tensors
    assert Shard("kv_heads") == layer["k, turned"]["cols"]
    attention = next(
        op for op in derive(blocks("llama3_8b")[1].graph, found.graphs["layer"]) if op.op.label == "attention"
    )
    assert {"rows": "sequence", "cols": "heads"} == {a: d.name for a, d in attention.along.items()}


def test_layouts_of_rules_and_of_annotations_are_the_same_kind_of_thing() -> None:
    layout = Layout("hand", MESH, (rule("rows", "b"), rule("cols", "c")))
    annotated = infer([chain()], MESH, {"x": {"rows": "b"}, "w": {"cols": "c"}})
    assert [op.collectives for op in derive(chain(), layout)] == [
        op.collectives for op in derive(chain(), annotated.graphs["chain"])
    ]
