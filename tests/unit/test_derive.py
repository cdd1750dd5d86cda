"""What a layout makes of operations: the table of Mesh-TensorFlow, its example, Megatron's layers, refusals."""

from __future__ import annotations

import pytest

from simulator.errors import LayoutError
from simulator.partition.derive import DerivedOp, derive
from simulator.partition.layout import PARTIAL, Layout, Rule, Shard, rule
from simulator.workload.counts import model_graph
from simulator.workload.graph import Dim, Kernel, LayerGraph, Lookup, Product, Tensor
from simulator.workload.model import load_model

B, IO, WIDE = Dim("batch", 64), Dim("io", 32), Dim("wide", 128)
E = 4.0
"""Bytes of an element here."""


def two_layers() -> LayerGraph:
    """The network of Shazeer et al., section 5: y = relu(x w) v."""
    x, h, a, y = (
        Tensor(n, dims, E) for n, dims in (("x", (B, IO)), ("h", (B, WIDE)), ("a", (B, WIDE)), ("y", (B, IO)))
    )
    w, v = Tensor("w", (IO, WIDE), E, "weight"), Tensor("v", (WIDE, IO), E, "weight")
    ops = (
        Product(label="first", inputs=(x,), weights=(w,), outputs=(h,)),
        Kernel(label="relu", inputs=(h,), outputs=(a,), moves=()),
        Product(label="second", inputs=(a,), weights=(v,), outputs=(y,)),
    )
    return LayerGraph(kind="two layers", inputs=(x,), ops=ops, outputs=(y,), weights=(w, v))


def sent(ops: tuple[DerivedOp, ...], of_weights: bool) -> float:
    """Bytes that one rank sends for gradients of weights, or for activations."""
    weights = ("gradient of w", "gradient of v", "gradients of its weights")
    return sum(c.sent for op in ops for c in op.collectives if (c.tensor in weights) == of_weights)


def test_data_parallelism_sends_the_gradients_of_both_matrices_once() -> None:
    n = 8
    ops = derive(two_layers(), Layout("data", (("all", n),), (rule("all", "batch"),)))
    assert 2 * (n - 1) / n * 2 * IO.size * WIDE.size * E == sent(ops, True)
    assert 0.0 == sent(ops, False)


def test_model_parallelism_sends_activations_once_each_way() -> None:
    n = 8
    ops = derive(two_layers(), Layout("model", (("all", n),), (rule("all", "wide"),)))
    each = 2 * (n - 1) / n * B.size * IO.size * E
    assert [("forward", each), ("backward", each)] == sorted(
        ((c.direction, c.sent) for op in ops for c in op.collectives), reverse=True
    )


def test_both_on_two_axes_send_less_of_each() -> None:
    r, c = 2, 4
    layout = Layout("both", (("rows", r), ("cols", c)), (rule("rows", "batch"), rule("cols", "wide")))
    ops = derive(two_layers(), layout)
    assert 2 * (r - 1) / r * 2 * IO.size * WIDE.size / c * E == sent(ops, True)
    assert 2 * 2 * (c - 1) / c * B.size / r * IO.size * E == sent(ops, False)


def one(op: Kernel | Product | Lookup, layout: Layout) -> DerivedOp:
    graph = LayerGraph(kind="one", inputs=op.inputs, ops=(op,), outputs=op.outputs, weights=op.weights)
    return derive(graph, layout)[0]


def kinds(op: DerivedOp) -> list[tuple[str, str, tuple[str, ...], float]]:
    return [(c.direction, c.kind, c.axes, c.bytes) for c in op.collectives]


MESH = (("rows", 2), ("cols", 4))


def test_component_wise_operations_communicate_nothing() -> None:
    x, y, z = (Tensor(name, (B, WIDE), E) for name in "xyz")
    layout = Layout("both", MESH, (rule("rows", "batch"), rule("cols", "wide")))
    found = one(Kernel(label="sum", inputs=(x, y), outputs=(z,), moves=()), layout)
    assert [] == kinds(found)
    assert [(32, 32)] * 3 == [tuple(d.size for d in o.shape) for o in found.operands]


def test_a_reduction_is_an_all_reduce_of_its_slice_over_axes_that_divide_what_it_reduces() -> None:
    x, y = Tensor("x", (B, WIDE), E), Tensor("y", (B,), E)
    layout = Layout("both", MESH, (rule("rows", "batch"), rule("cols", "wide")))
    found = one(Kernel(label="sum", inputs=(x,), outputs=(y,), moves=(), reduces=(WIDE,)), layout)
    assert [("forward", "all_reduce", ("cols",), B.size / 2 * E)] == kinds(found)


def test_an_einsum_over_two_divided_dimensions_is_added_over_both_axes_at_once() -> None:
    k, m = Dim("k", 8), Dim("m", 16)
    x, w, y = Tensor("x", (B, k, m), E), Tensor("w", (k, m, WIDE), E, "weight"), Tensor("y", (B, WIDE), E)
    found = one(
        Product(label="y", inputs=(x,), weights=(w,), outputs=(y,)),
        Layout("deep", MESH, (rule("rows", "k"), rule("cols", "m"))),
    )
    assert [("forward", "all_reduce", ("rows", "cols"), B.size * WIDE.size * E)] == kinds(found)
    assert {"rows": PARTIAL, "cols": PARTIAL} == dict(found.part("output")[0].used)
    assert 2 * B.size * 4 * 4 * WIDE.size == found.flops


def test_a_look_up_in_a_divided_table_is_added_up() -> None:
    words, wide = Dim("vocabulary", 128), Dim("hidden", 16)
    ids, out = Tensor("ids", (B,), 8.0), Tensor("out", (B, wide), E)
    table = Tensor("table", (words, wide), E, "weight")
    op = Lookup(label="rows", inputs=(ids,), weights=(table,), outputs=(out,), moves=())
    layout = Layout("table", MESH, (rule("rows", "batch"), rule("cols", "vocabulary")))
    found = [("forward", "all_reduce", ("cols",), 32 * 16 * E), ("backward", "all_reduce", ("rows",), 32 * 16 * E)]
    assert found == kinds(one(op, layout))


def test_a_norm_over_a_divided_dimension_adds_up_its_statistics() -> None:
    graph = model_graph(load_model("gpt2"), "layer")
    norm = derive(graph, Layout("wide", (("cols", 4),), (rule("cols", "hidden"),)))[0]
    tokens = load_model("gpt2").sequence_length
    statistics = ("all_reduce", ("cols",), 2 * 4.0 * tokens)
    assert [("forward", *statistics), ("backward", *statistics)] == kinds(norm)


def test_operands_that_lie_otherwise_are_gathered_and_their_gradients_scattered() -> None:
    """Sequence parallelism: tokens where nothing wide is divided."""
    layout = Layout("tokens", (("cols", 4),), (rule("cols", "ffn", "heads"), rule("cols", "sequence")))
    ops = {op.op.label: op for op in derive(model_graph(load_model("gpt2"), "layer"), layout)}
    found = [(c.direction, c.kind, c.tensor.partition(" of")[0]) for c in ops["mlp up"].collectives]
    norm = "mlp norm output"
    assert found[:3] == [
        ("forward", "all_gather", norm),
        ("backward", "all_gather", norm),
        ("backward", "reduce_scatter", "gradient"),
    ]
    assert [("forward", "reduce_scatter"), ("backward", "all_gather")] == [
        (c.direction, c.kind) for c in ops["mlp down"].collectives if c.tensor.endswith("mlp down output")
    ]


def test_what_was_gathered_may_be_kept() -> None:
    layout = Layout("tokens", (("cols", 4),), (rule("cols", "ffn", "heads"), rule("cols", "sequence")))
    graph = model_graph(load_model("gpt2"), "layer")
    again, kept = (derive(graph, layout, gathers_again=again) for again in (True, False))
    counts = [sum(c.kind == "all_gather" for op in ops for c in op.collectives) for ops in (again, kept)]
    assert [6, 4] == counts


def test_experts_dealt_out_exchange_their_rows() -> None:
    graph = model_graph(load_model("mixtral_8x7b"), "moe layer")
    rules = (rule("cols", "experts"), rule("cols", "sequence", "copies"), rule("cols", "expert_rows"))
    ops = {op.op.label: op for op in derive(graph, Layout("experts", (("cols", 4),), rules))}
    rows = 32768 * 2 * 4096 * 2.0 / 4
    for label in ("dispatch", "combine"):
        assert [("forward", "all_to_all", ("cols",), rows), ("backward", "all_to_all", ("cols",), rows)] == kinds(
            ops[label]
        )
    assert not [c for c in ops["expert up"].collectives]
    (batch, m, n, k) = ops["expert up"].shapes[0]
    assert (2, 8192, 14336, 4096) == (batch, m, n, k)


def test_rows_of_the_same_experts_on_every_rank_stay_where_they_are() -> None:
    graph = model_graph(load_model("mixtral_8x7b"), "moe layer")
    layout = Layout("rows", (("rows", 4),), (rule("rows", "sequence", "copies", "expert_rows"),))
    ops = {op.op.label: op for op in derive(graph, layout)}
    assert [] == kinds(ops["dispatch"]) == kinds(ops["combine"])
    assert [("backward", "all_reduce", ("rows",))] == [found[:3] for found in kinds(ops["expert up"])]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ((rule("cols", "wide", "io"),), ("'w'", "io", "wide", "'cols'")),
        ((rule("rows", "io"),), ("'x'", "io = 32", "'rows'", "Nearest: 2 ranks")),
    ],
)
def test_what_cannot_lie_so_is_refused_with_tensor_dimension_axis_and_the_nearest(
    rules: tuple[Rule, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(LayoutError) as error:
        derive(two_layers(), Layout("wrong", (("cols", 4), ("rows", 3)), rules))
    for word in words:
        assert word in str(error.value)


def test_the_parts_of_a_dimension_on_two_axes_are_those_of_both() -> None:
    layout = Layout("two", MESH, (rule("rows", "batch"), rule("cols", "batch")))
    found = derive(two_layers(), layout)
    assert {"rows": Shard("batch"), "cols": Shard("batch")} == dict(found[0].part("input")[0].held)
    assert (8, 32) == tuple(d.size for d in found[0].part("input")[0].shape)
    assert ("backward", "all_reduce", ("rows", "cols"), IO.size * WIDE.size * E) in kinds(found[0])


def test_ranks_that_share_a_key_head_add_its_gradients() -> None:
    """Llama-3 8B has 8 key/value heads: on 16 ranks every two neighbours hold the same one."""
    graph = model_graph(load_model("llama3_8b"), "layer")
    qkv = derive(graph, Layout("many", (("cols", 16),), (rule("cols", "heads"),)))[1]
    shapes = {o.tensor.name: [d.size for d in o.shape] for o in qkv.part("weight")}
    assert [4096, 1, 128] == shapes["qkv weight of k"]
    (shared,) = [c for c in qkv.collectives if c.ranks != 16]
    assert ("all_reduce", ("cols",), 2, 2 * 4096 * 128 * 2.0) == (shared.kind, shared.axes, shared.ranks, shared.bytes)
