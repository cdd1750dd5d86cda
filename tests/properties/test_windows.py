"""Convolutions and shifted stages on a mesh: halos by formula, and every program computes what one rank does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.errors import GraphError, LayoutError
from simulator.partition.derive import derive
from simulator.partition.infer import infer
from simulator.partition.layout import Layout, rule
from simulator.partition.placements import lay_out
from simulator.testing.mesh_interpreter import differences
from simulator.workload.graph import Dim, LayerGraph, Op, Product, Tensor
from simulator.workload.verify import verify
from simulator.workload.windows import convolution, shift

N, H, W, C_IN, C_OUT = Dim("n", 4), Dim("h", 24), Dim("w", 12), Dim("c_in", 4), Dim("c_out", 4)
MESH = (("rows", 2), ("cols", 3))


def images(window: int = 3, stride: int = 1) -> LayerGraph:
    x = Tensor("x", (N, H, W, C_IN), 2.0)
    k = Tensor("k", (Dim("kh", window), Dim("kw", window), C_IN, C_OUT), 2.0, "weight")
    op = convolution("conv", x, k, "y", stride)
    return LayerGraph(kind="images", inputs=(x,), ops=(op,), outputs=op.outputs, weights=(k,))


def layout(mesh: tuple[tuple[str, int], ...], **on: str) -> Layout:
    return Layout("example", mesh, tuple(rule(axis, dim) for dim, axis in on.items()))


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (3, 2), (4, 2), (5, 2)])
@pytest.mark.parametrize(
    "on",
    [
        {"n": "rows"},
        {"h": "cols"},
        {"h": "rows", "w": "cols"},
        {"w": "cols", "c_in": "rows"},
        {"h": "cols", "c_out": "rows"},
    ],
)
def test_divided_convolutions_compute_what_one_rank_does(on: dict[str, str], window: int, stride: int) -> None:
    graph, lies = images(window, stride), layout(MESH, **on)
    derived = derive(graph, lies)
    assert [] == differences(graph, lay_out(graph, lies), derived)
    if derived[0].halos:
        assert differences(graph, lay_out(graph, lies), (replace(derived[0], halos=()),))


def test_a_divided_window_is_gathered() -> None:
    graph, lies = images(3), layout(MESH, kh="cols", h="rows")
    derived = derive(graph, lies)
    assert [] == differences(graph, lay_out(graph, lies), derived)
    assert ("all_gather", ("cols",)) in [(c.kind, c.axes) for c in derived[0].collectives]


def test_a_dimension_on_two_axes_has_its_neighbours_across_both() -> None:
    graph = images(3)
    lies = Layout("both", MESH, (rule(("cols", "rows"), "h"),))
    derived = derive(graph, lies)
    assert [] == differences(graph, lay_out(graph, lies), derived)
    assert (("cols", "rows"), 6) == (derived[0].collectives[0].axes, derived[0].collectives[0].ranks)


@pytest.mark.parametrize(("window", "stride"), [(3, 1), (5, 1), (4, 2), (5, 2)])
def test_neighbours_exchange_window_minus_stride_rows(window: int, stride: int) -> None:
    op = derive(images(window, stride), layout((("cols", 4),), h="cols"))[0]
    rows = 4 * 12 * 4 * 2.0  # n w c_in of two bytes
    found = [(c.direction, c.kind, c.axes, c.sent) for c in op.collectives]
    sent = (window - stride) * rows
    halos = [("forward", "send_recv", ("cols",), sent), ("backward", "send_recv", ("cols",), sent)]
    assert halos == [c for c in found if c[1] == "send_recv"]
    assert ["all_reduce"] == [kind for _, kind, _, _ in found if kind != "send_recv"]  # of the weight's gradient
    assert 2 * 4 * (24 / stride / 4) * (12 / stride) * 4 * window**2 * 4 == op.flops


def test_corners_come_with_the_second_halo() -> None:
    op = derive(images(5), layout((("rows", 3), ("cols", 3)), h="rows", w="cols"))[0]
    first, second = (c.sent for c in op.collectives if c.kind == "send_recv" and c.direction == "forward")
    assert (4 * (4 * 4 * 4) * 2, 4 * (4 * (8 + 4) * 4) * 2) == (first, second)


def test_rows_of_images_propagate_and_graphs_are_sound() -> None:
    graph = images(3, 2)
    verify(graph)
    verify(pipeline(3))
    wrong = replace(graph.ops[0], outputs=(replace(graph.outputs[0], dims=(N, H, Dim("w", 6), C_OUT)),))
    with pytest.raises(GraphError, match="joins 'x' with h = 24 and 'y' with h = 24 behind a stride of 2"):
        verify(replace(graph, ops=(wrong,), outputs=wrong.outputs))
    found = infer([graph], MESH, {"x": {"cols": "h"}})
    assert {"y": {"cols": "h"}, "k": {}} == found.found
    laid = found.graphs["images"]
    assert [] == differences(graph, laid, derive(graph, laid))


def test_mesh_tensorflow_has_no_halos() -> None:
    with pytest.raises(LayoutError, match=r"divides h of 'x' on mesh axis 'cols'.*Nearest: h whole"):
        derive(images(), layout((("cols", 4),), h="cols"), halos=False)
    assert derive(images(), layout((("cols", 4),), c_in="cols"), halos=False)
    assert not derive(images(1), layout((("cols", 4),), h="cols"), halos=False)[0].halos


def test_what_reaches_beyond_the_next_rank_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"leaves 1 rows of w of 'x' on mesh axis 'cols'.*needs 2.*Nearest: 6 ranks"):
        derive(images(5), layout((("cols", 12),), w="cols"))
    with pytest.raises(GraphError, match="expected a stride that divides h = 24"):
        images(7, 5)


def pipeline(stages: int, turns: int = 3) -> LayerGraph:
    """Stages that each multiply by a weight of their own and hand on what they made."""
    stage, batch, hidden, wide = Dim("stage", stages), Dim("batch", 4), Dim("hidden", 6), Dim("wide", 6)
    x = Tensor("x", (stage, batch, hidden), 2.0)
    given, weights, ops = x, list[Tensor](), list[Op]()
    for turn in range(turns):
        up, down = (
            Tensor(f"{n}{turn}", (stage, *d), 2.0, "weight") for n, d in (("w", (hidden, wide)), ("v", (wide, hidden)))
        )
        mid, out = Tensor(f"mid{turn}", (stage, batch, wide), 2.0), Tensor(f"out{turn}", (stage, batch, hidden), 2.0)
        ops.append(Product(label=f"up {turn}", inputs=(given,), weights=(up,), outputs=(mid,)))
        ops.append(Product(label=f"down {turn}", inputs=(mid,), weights=(down,), outputs=(out,)))
        ops.append(shift(f"shift {turn}", out, "stage", f"handed{turn}"))
        given, weights = ops[-1].outputs[0], [*weights, up, down]
    return LayerGraph(kind="stages", inputs=(x,), ops=tuple(ops), outputs=(given,), weights=tuple(weights))


@pytest.mark.parametrize("stages", [3, 6])
def test_equal_stages_are_a_dimension_that_is_shifted(stages: int) -> None:
    graph, lies = pipeline(stages), layout(MESH, stage="cols", wide="rows")
    derived = derive(graph, lies)
    assert [] == differences(graph, lay_out(graph, lies), derived)
    moved = [(op.op.label, c.direction, c.sent) for op in derived for c in op.collectives if c.kind == "send_recv"]
    boundary = 4 * 6 * 2.0  # one stage's rows, however many stages a rank has
    assert [(f"shift {turn}", way, boundary) for turn in range(3) for way in ("forward", "backward")] == moved
    broken = tuple(replace(op, halos=()) for op in derived)
    assert differences(graph, lay_out(graph, lies), broken)


def test_unequal_stages_are_refused() -> None:
    with pytest.raises(
        LayoutError, match=r"lays stage = 4 of 'x' on the 3 ranks of mesh axis 'cols'. Nearest: 2 ranks"
    ):
        derive(pipeline(4), layout(MESH, stage="cols"))
