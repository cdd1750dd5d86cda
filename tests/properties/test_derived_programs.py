"""Derived programs compute, forward and backward, what one rank computes: random graphs, meshes, and places of every tensor."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.partition.derive import DerivedOp, derive
from simulator.partition.infer import infer
from simulator.partition.layout import Layout, Shard, rule
from simulator.partition.placements import LaidOut, lay_out, running_dims, tensors_of
from simulator.partition.signatures import choose_signatures
from simulator.testing.mesh_interpreter import MeshInterpreter, differences
from simulator.workload.graph import Dim, Kernel, LayerGraph, Lookup, Op, Product, Tensor

NAMES = ("batch", "rows", "io", "wide", "deep")
Mesh = tuple[tuple[str, int], ...]
SIZE = 12
"""Of every dimension: what meshes of up to three axes of 2 and 3 ranks divide."""
DIMS = tuple(Dim(name, SIZE) for name in NAMES)


@st.composite
def graphs(draw: st.DrawFn) -> LayerGraph:
    """A chain of products, component-wise operations, reductions and sums; now and then a look-up before it."""
    some = st.lists(st.sampled_from(DIMS), min_size=1, max_size=3, unique=True).map(tuple)
    inputs, weights, ops = [], [], []
    if draw(st.booleans()):
        ids, table = Tensor("ids", (DIMS[0],), 8.0), Tensor("table", (Dim("vocabulary", SIZE), DIMS[2]), 2.0, "weight")
        out = Tensor("looked up", (DIMS[0], DIMS[2]), 2.0)
        inputs, weights = [ids], [table]
        ops: list[Op] = [Lookup(label="look-up", inputs=(ids,), weights=(table,), outputs=(out,), moves=())]
        made = [out]
    else:
        made = [Tensor("x0", draw(some), 2.0)]
        inputs = list(made)
    for number in range(draw(st.integers(1, 4))):
        x = draw(st.sampled_from([t for t in made if t.dims]))
        kind, name = draw(st.sampled_from(("product", "both", "kernel", "reduction"))), f"x{number + 1}"
        if kind == "product":
            summed = draw(st.lists(st.sampled_from(x.dims), min_size=1, max_size=len(x.dims), unique=True))
            new = [d for d in draw(some) if d not in x.dims][:2]
            kept = [d for d in x.dims if d not in summed]
            shared = [d for d in kept if draw(st.booleans())][:1]
            w = Tensor(f"w{number}", (*shared, *summed, *new), 2.0, "weight")
            y = Tensor(name, (*kept, *new), 2.0)
            owned = [w]
            if new and draw(st.booleans()):
                owned.append(Tensor(f"b{number}", tuple(new), 2.0, "bias"))
            ops.append(Product(label=f"product {number}", inputs=(x,), weights=tuple(owned), outputs=(y,)))
            weights += owned
        else:
            other = draw(st.sampled_from(made))
            given_ = (x,) if kind == "reduction" or other is x else (x, other)
            union = tuple(dict.fromkeys(d for t in given_ for d in t.dims))
            if kind == "both" and len(given_) == 2 and set(x.dims) & set(other.dims):
                y = Tensor(
                    name, tuple(d for d in union if not (d in x.dims and d in other.dims)), 2.0
                )  # may have no dimension left
                ops.append(Product(label=f"product {number}", inputs=given_, outputs=(y,)))
            else:
                y = Tensor(name, tuple(d for d in union if draw(st.booleans())) or union[:1], 2.0)
                reduces: tuple[Dim, ...] = ()
                owned = []
                if kind == "reduction":
                    reduces = tuple(d for d in union if d not in y.dims) or union[:1]
                    if draw(st.booleans()):
                        y = Tensor(name, union, 2.0)
                        reduces = union[-1:]
                if draw(st.booleans()) and y.dims:
                    owned = [Tensor(f"v{number}", y.dims[-1:], 2.0, "vector")]
                    weights += owned
                ops.append(
                    Kernel(
                        label=f"kernel {number}",
                        inputs=given_,
                        weights=tuple(owned),
                        outputs=(y,),
                        moves=(),
                        reduces=reduces,
                    )
                )
        made.append(y)
    return LayerGraph(kind="random", inputs=tuple(inputs), ops=tuple(ops), outputs=(made[-1],), weights=tuple(weights))


@st.composite
def laid_graphs(draw: st.DrawFn) -> tuple[LayerGraph, LaidOut]:
    """A graph of which every tensor lies anywhere, and every operation is divided by anything."""
    graph = draw(graphs())
    sizes = draw(st.sampled_from(((2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (2, 2, 3))))
    mesh = tuple(zip(("one", "two", "three"), sizes, strict=False))

    def on(dims: tuple[Dim, ...]) -> dict[str, Dim]:
        axes = draw(st.permutations([axis for axis, _ in mesh]))
        chosen = {axis: draw(st.sampled_from((None, *dims))) for axis in axes}
        return {axis: dim for axis, dim in chosen.items() if dim is not None}

    tensors = {t.name: {axis: Shard(d.name) for axis, d in on(t.dims).items()} for t in tensors_of(graph)}
    along = tuple(on(running_dims(op)) for op in graph.ops)
    return graph, LaidOut("random", mesh, tensors, along)


@settings(max_examples=150, deadline=None)
@given(laid_graphs(), st.integers(0, 2**16))
def test_any_program_computes_what_one_rank_does(laid: tuple[LayerGraph, LaidOut], seed: int) -> None:
    graph, places = laid
    assert [] == differences(graph, places, derive(graph, places), seed)


@st.composite
def annotated(draw: st.DrawFn) -> tuple[LayerGraph, Mesh, dict[str, dict[str, str]]]:
    """A graph of which a few tensors are annotated."""
    graph = draw(graphs())
    mesh = draw(st.sampled_from(((("one", 2), ("two", 2)), (("one", 3), ("two", 2), ("three", 2)))))
    out = {}
    for tensor in draw(st.lists(st.sampled_from(list(tensors_of(graph))), max_size=3, unique_by=lambda t: t.name)):
        axes = [axis for axis, _ in mesh if tensor.dims and draw(st.booleans())]
        out[tensor.name] = {axis: draw(st.sampled_from(tensor.dims)).name for axis in axes}
    return graph, mesh, out


@settings(max_examples=100, deadline=None)
@given(annotated())
def test_what_follows_from_annotations_computes_what_one_rank_does(
    given: tuple[LayerGraph, Mesh, dict[str, dict[str, str]]],
) -> None:
    graph, mesh, annotations = given
    found = infer([graph], mesh, annotations)
    laid = found.graphs["random"]
    for name, on in annotations.items():
        assert on == {axis: p.dim for axis, p in laid.tensors[name].items() if isinstance(p, Shard)}
    assert [] == differences(graph, laid, derive(graph, laid))


@settings(max_examples=60, deadline=None)
@given(annotated())
def test_chosen_signatures_compute_what_one_rank_does(
    given: tuple[LayerGraph, Mesh, dict[str, dict[str, str]]],
) -> None:
    graph, mesh, annotations = given
    places = {name: {axis: Shard(dim) for axis, dim in on.items()} for name, on in annotations.items()}
    laid = choose_signatures(graph, mesh, places)
    assert [] == differences(graph, laid, derive(graph, laid))


def small() -> LayerGraph:
    """A look-up, a norm, two products with a bias and a kernel between, a sum around them, a reduction."""
    b, h, f, v = Dim("batch", 8), Dim("hidden", 8), Dim("ffn", 8), Dim("vocabulary", 8)
    ids, x, n = Tensor("ids", (b,), 8.0), Tensor("x", (b, h), 2.0), Tensor("normed", (b, h), 2.0)
    up, act, down = Tensor("up", (b, f), 2.0), Tensor("act", (b, f), 2.0), Tensor("down", (b, h), 2.0)
    out, loss = Tensor("out", (b, h), 2.0), Tensor("loss", (b,), 4.0)
    table, scale = Tensor("table", (v, h), 2.0, "weight"), Tensor("scale", (h,), 2.0, "vector")
    w, bias, u = (
        Tensor("w", (h, f), 2.0, "weight"),
        Tensor("bias", (f,), 2.0, "bias"),
        Tensor("u", (f, h), 2.0, "weight"),
    )
    ops = (
        Lookup(label="look-up", inputs=(ids,), weights=(table,), outputs=(x,), moves=()),
        Kernel(label="norm", inputs=(x,), weights=(scale,), outputs=(n,), moves=(), reduces=(h,)),
        Product(label="up", inputs=(n,), weights=(w, bias), outputs=(up,)),
        Kernel(label="gelu", inputs=(up,), outputs=(act,), moves=()),
        Product(label="down", inputs=(act,), weights=(u,), outputs=(down,)),
        Kernel(label="sum", inputs=(down, x), outputs=(out,), moves=()),
        Kernel(label="loss", inputs=(out,), outputs=(loss,), moves=(), reduces=(h,), role="loss"),
    )
    return LayerGraph(kind="small", inputs=(ids,), ops=ops, outputs=(loss,), weights=(table, scale, w, bias, u))


RULES = {
    "data": (rule("rows", "batch"),),
    "megatron": (rule("cols", "ffn", "vocabulary"),),
    "tokens": (rule("cols", "ffn", "vocabulary"), rule("cols", "batch")),
    "both": (rule("rows", "batch"), rule("cols", "ffn", "vocabulary")),
    "wide": (rule("rows", "batch"), rule("cols", "hidden")),
    "sharded": (rule("rows", "batch"), rule("rows", "ffn"), rule("cols", "hidden")),
}
"""Layouts; "sharded" gathers weights, as ZeRO-3 does."""


@pytest.mark.parametrize("rules", list(RULES))
def test_layouts_of_rules_compute_what_one_rank_does(rules: str) -> None:
    layout = Layout(rules, (("rows", 2), ("cols", 4)), RULES[rules])
    assert [] == differences(small(), lay_out(small(), layout), derive(small(), layout))


def planted(ops: tuple[DerivedOp, ...]) -> list[tuple[str, tuple[DerivedOp, ...]]]:
    """Every program with one collective left out, or with one made over another axis."""
    out: list[tuple[str, tuple[DerivedOp, ...]]] = []

    def put(i: int, what: str, op: DerivedOp) -> None:
        out.append((f"{ops[i].op.label}: {what}", (*ops[:i], op, *ops[i + 1 :])))

    for i, op in enumerate(ops):
        if op.reduces:
            put(i, "statistics", replace(op, reduces=()))
        for j, way in itertools.product(range(len(op.operands)), ("forward", "backward")):
            moves = getattr(op.operands[j], way)
            for k, move in enumerate(moves):
                if not move.collective:
                    continue
                fewer = (*moves[:k], *moves[k + 1 :])
                other = (*moves[:k], replace(move, axis={"rows": "cols", "cols": "rows"}[move.axis]), *moves[k + 1 :])
                for what, wrong in (("left out", fewer), ("over another axis", other)):
                    operand = replace(op.operands[j], **{way: wrong})
                    operands = (*op.operands[:j], operand, *op.operands[j + 1 :])
                    put(i, f"{move.collective} of {operand.tensor.name} {way} {what}", replace(op, operands=operands))
    return out


@pytest.mark.parametrize("rules", list(RULES))
def test_every_collective_that_is_wrong_is_seen(rules: str) -> None:
    layout = Layout(rules, (("rows", 2), ("cols", 4)), RULES[rules])
    wrong = planted(derive(small(), layout))
    assert len(wrong) >= 4
    for what, ops in wrong:
        assert seen(layout, ops), f"{rules}, {what}: nobody noticed"


def seen(layout: Layout, ops: tuple[DerivedOp, ...]) -> bool:
    try:
        return bool(differences(small(), lay_out(small(), layout), ops))
    except (ValueError, IndexError):
        return True


def test_gradients_of_one_rank_are_those_of_small_differences() -> None:
    """The interpreter's own mathematics, which all ranks share."""
    graph, step = small(), 1e-5
    alone = LaidOut("one rank", (), {t.name: {} for t in tensors_of(graph)}, ({},) * len(graph.ops))
    ops = derive(graph, alone)
    right = MeshInterpreter(alone, graph)
    right.run(ops)
    weighed = {name: parts[()] for name, parts in right.gradients.items()}["loss"]

    def loss(name: str, place: tuple[int, ...], change: float) -> float:
        one = MeshInterpreter(alone, graph, nudged=(name, place, change))
        one.run(ops)
        return float(np.sum(weighed * one.values["loss"][()]))

    for name, place in (("table", (1, 2)), ("scale", (3,)), ("w", (1, 4)), ("bias", (5,)), ("u", (0, 6))):
        slope = (loss(name, place, step) - loss(name, place, -step)) / (2 * step)
        found: Any = right.gradients[name][()][place]
        assert slope == pytest.approx(found, rel=1e-4, abs=1e-7), name
