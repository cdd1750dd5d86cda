"""Layouts in the words of OneFlow, PyTorch, JAX and MindSpore, and OneFlow's costs and signatures."""

from __future__ import annotations

import math

import pytest

from simulator.errors import LayoutError, SpecError
from simulator.partition.derive import derive
from simulator.partition.layout import PARTIAL, REPLICATE, Placement, Shard
from simulator.partition.placements import LaidOut
from simulator.partition.redistribute import moved_bytes, redistribute
from simulator.partition.sbp import (
    from_dtensor,
    from_partition_spec,
    from_sbp,
    from_tensor_map,
    to_dtensor,
    to_partition_spec,
    to_sbp,
    to_tensor_map,
)
from simulator.partition.signatures import boxing_bytes, choose_signatures
from simulator.workload.graph import Dim, LayerGraph, Product, Tensor

MESH = (("rows", 4), ("cols", 2))
M, K, N = Dim("m", 16), Dim("k", 16), Dim("n", 16)
W = Tensor("w", (K, N), 4.0, "weight")
BOTH: dict[str, Placement] = {"rows": Shard("k"), "cols": Shard("n")}
DEEP: dict[str, Placement] = {"rows": Shard("n"), "cols": Shard("n")}


def test_oneflow_has_a_word_per_mesh_axis() -> None:
    assert ["S(0)", "S(1)"] == to_sbp(W, BOTH, MESH)
    assert BOTH == from_sbp(W, ["S(0)", "S(1)"], MESH) == from_sbp(W, ["s0", " S1"], MESH)
    assert ["P", "B"] == to_sbp(W, {"rows": PARTIAL}, MESH)
    assert {"rows": PARTIAL} == from_sbp(W, ["P", "B"], MESH)


def test_pytorch_has_a_word_per_mesh_axis() -> None:
    assert ["Shard(0)", "Shard(1)"] == to_dtensor(W, BOTH, MESH)
    assert BOTH == from_dtensor(W, ["Shard(0)", "Shard(dim=1)"], MESH)
    assert ["Partial()", "Replicate()"] == to_dtensor(W, {"rows": PARTIAL}, MESH)
    assert {"rows": PARTIAL} == from_dtensor(W, ["Partial()", "Replicate()"], MESH)
    with pytest.raises(LayoutError, match=r"in the order of the mesh, but n of 'w' lies on cols, then rows"):
        to_dtensor(W, {"cols": Shard("n"), "rows": Shard("n")}, MESH)


def test_jax_has_an_entry_per_dimension() -> None:
    assert ("rows", "cols") == to_partition_spec(W, BOTH)
    assert BOTH == from_partition_spec(W, ("rows", "cols"), MESH)
    assert (None, ("rows", "cols")) == to_partition_spec(W, DEEP)
    assert DEEP == from_partition_spec(W, (None, ("rows", "cols")), MESH)
    assert {} == from_partition_spec(W, (), MESH)
    with pytest.raises(LayoutError, match=r"is a sum in terms on mesh axis 'rows'. Nearest: add it up first"):
        to_partition_spec(W, {"rows": PARTIAL})


def test_mindspore_has_a_number_per_dimension_counted_from_the_last_axis() -> None:
    assert (1, 0) == to_tensor_map(W, BOTH, MESH)
    assert BOTH == from_tensor_map(W, (1, 0), MESH)
    assert (-1, (1, 0)) == to_tensor_map(W, DEEP, MESH)
    assert DEEP == from_tensor_map(W, (-1, (1, 0)), MESH)


@pytest.mark.parametrize(
    ("read", "words", "said"),
    [
        (from_sbp, ["S(2)", "B"], r"expected S\(0\) to S\(1\), B, P, got 'S\(2\)'"),
        (from_sbp, ["B"], "one word per mesh axis"),
        (from_dtensor, ["S(0)", "B"], r"expected Shard\(0\)"),
        (from_partition_spec, ("rows", "rows"), "got two"),
        (from_partition_spec, ("row",), "the mesh has axes rows, cols"),
        (from_partition_spec, (None, None, None), "3 entries"),
        (from_tensor_map, (2, -1), "counts the 2 mesh axes from 0"),
    ],
)
def test_other_words_are_refused(read: object, words: object, said: str) -> None:
    with pytest.raises((SpecError, LayoutError), match=said):
        read(W, words, MESH)  # type: ignore[operator]


P = 4
T = 1024.0
BOXING = {
    ("S(0)", "S(0)"): 0.0,
    ("S(0)", "S(1)"): (P - 1) / P * T,
    ("S(0)", "B"): (P - 1) * T,
    ("P", "S(0)"): (P - 1) * T,
    ("P", "B"): 2 * (P - 1) * T,
    ("B", "S(0)"): 0.0,
    ("B", "B"): 0.0,
    ("P", "P"): 0.0,
}
"""Bytes moved over all P devices for a tensor of T bytes: Yuan et al., arXiv 2110.15032, table 2."""


@pytest.mark.parametrize("pair", list(BOXING))
def test_boxing_moves_what_oneflows_table_says(pair: tuple[str, str]) -> None:
    mesh = (("cols", P),)
    held, wanted = (from_sbp(W, [word], mesh) for word in pair)
    assert BOXING[pair] == sum(moved_bytes(move, T, P) for move in redistribute(held, wanted))
    assert W.bytes == T
    assert BOXING[pair] == boxing_bytes(W, held, wanted, mesh)


SIGNATURES = {("S(0)", "B"): "S(0)", ("B", "S(1)"): "S(1)", ("S(1)", "S(0)"): "P", ("B", "B"): "B"}
"""Of a matrix product: Yuan et al., table 1."""


@pytest.mark.parametrize("given", list(SIGNATURES))
def test_a_product_has_oneflows_signatures(given: tuple[str, str]) -> None:
    mesh = (("cols", P),)
    x, y = Tensor("x", (M, K), 4.0), Tensor("y", (M, N), 4.0)
    op = Product(label="product", inputs=(x,), weights=(W,), outputs=(y,))
    graph = LayerGraph(kind="one", inputs=(x,), ops=(op,), outputs=(y,), weights=(W,))
    places = {"x": from_sbp(x, [given[0]], mesh), "w": from_sbp(W, [given[1]], mesh)}
    chosen = choose_signatures(graph, mesh, places)
    made = derive(graph, chosen)[0].part("output")[0].used
    assert [SIGNATURES[given]] == to_sbp(y, made, mesh)
    assert not [m for o in derive(graph, chosen)[0].operands if o.role != "output" for m in o.forward]


def test_signatures_are_chosen_in_order_by_what_moves_least() -> None:
    """Megatron's MLP: columns given for the first matrix, rows for the second, the rest follows."""
    x, h, y = (Tensor(n, (M, d), 4.0) for n, d in (("x", K), ("h", N), ("y", K)))
    v = Tensor("v", (N, K), 4.0, "weight")
    ops = (
        Product(label="up", inputs=(x,), weights=(W,), outputs=(h,)),
        Product(label="down", inputs=(h,), weights=(v,), outputs=(y,)),
    )
    graph = LayerGraph(kind="two", inputs=(x,), ops=ops, outputs=(y,), weights=(W, v))
    laid = choose_signatures(graph, (("cols", P),), {"x": {}, "w": {"cols": Shard("n")}, "v": {"cols": Shard("n")}})
    assert {"cols": Shard("n")} == dict(laid.tensors["h"])
    assert ["n", "n"] == [along["cols"].name for along in laid.along]
    assert [("down", "all_reduce")] == [
        (op.op.label, c.kind) for op in derive(graph, laid) for c in op.collectives if c.direction == "forward"
    ]


def test_two_axes_of_one_dimension_move_no_more_than_both_gathered() -> None:
    laid = LaidOut("two", MESH, {}, ())
    moves = redistribute(DEEP, {})
    assert {"all_gather"} == {m.collective for m in moves}
    assert REPLICATE == moves[-1].wanted
    assert math.prod(laid.ranks.values()) == 8
