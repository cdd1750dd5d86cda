"""Layouts on meshes of several axes: SUMMA in two dimensions, with a depth, and products in three, as they follow from rules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from simulator.errors import LayoutError
from simulator.partition.layout import MATRICES, Layout, Shard, rule
from simulator.partition.propagate import product_steps, run_along, wanted
from simulator.partition.redistribute import moved_bytes, redistribute, sizes
from simulator.testing.simulated_ranks import SimulatedRanks
from simulator.testing.strategy_contract import Chain, StrategyContract
from simulator.workload.graph import Dim, Tensor

WIDTHS = ("hidden", "ffn")


def in_two(q: int, depth: int = 1) -> Layout:
    """Tokens on rows (and depth), widths on cols; a weight's columns on cols and its depth on rows."""
    columns = rule("cols", *WIDTHS, kinds=(MATRICES,), takes="last")
    rules = (rule(("depth", "rows"), "batch"), columns, rule("rows", *WIDTHS, kinds=(MATRICES,), takes="first"))
    return Layout(
        "two",
        (("rows", q), ("cols", q), ("depth", depth)),
        (*rules, rule("cols", *WIDTHS, kinds=("activations", "vectors"))),
        output_stationary=True,
    )


def in_three(q: int) -> Layout:
    """One width on rows and the other on cols, tokens on what is left; a weight's columns on depth, too."""
    return Layout(
        "three",
        (("rows", q), ("cols", q), ("depth", q)),
        (
            rule("rows", "hidden"),
            rule("cols", "ffn"),
            rule("depth", *WIDTHS, kinds=(MATRICES,), takes="last"),
            rule(("depth", "cols", "rows"), "batch"),
        ),
    )


def tensors(m: int, k: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, w, y of a product, one byte per element."""
    batch, hidden, ffn = Dim("batch", m), Dim("hidden", k), Dim("ffn", n)
    return Tensor("x", (batch, hidden), 1.0), Tensor("w", (hidden, ffn), 1.0, "weight"), Tensor("y", (batch, ffn), 1.0)


def moved(layout: Layout, x: Tensor, w: Tensor, y: Tensor, kept: bool = False) -> float:
    """Elements that a rank sends for a product and its gradients; `kept`: what was gathered once is not gathered again."""
    total, gathered = 0.0, set()
    along = run_along(layout, x, w, y)
    ranks = dict(layout.mesh)
    triples = ((x, w, y), (y, w, x), (x, y, w))
    for steps, (first, second, result) in zip(product_steps(layout, x, w, y), triples, strict=True):
        for tensor, moves in ((first, steps.first), (second, steps.second)):
            for move, size in sizes(layout.placed(tensor), moves, tensor.bytes, ranks):
                if not kept or (tensor.name, move) not in gathered:
                    total += moved_bytes(move, size, ranks[move.axis]) / ranks[move.axis]
                gathered.add((tensor.name, move))
        for move, size in sizes(wanted(along, result, True), steps.result, result.bytes, ranks):
            total += moved_bytes(move, size, ranks[move.axis]) / ranks[move.axis]
    return total


@pytest.mark.parametrize("q", [2, 3, 4])
def test_in_two_dimensions_a_product_moves_what_summa_does(q: int) -> None:
    """Colossal-AI's documentation, features/2D_tensor_parallel: 6 (q - 1) / q of a matrix over q, for matrices of one size."""
    m, k, n = 12 * 5, 12 * 7, 12 * 11
    assert 3 * (q - 1) * (m * k + k * n) / q**2 == pytest.approx(moved(in_two(q), *tensors(m, k, n)))
    assert 6 * (q - 1) / q * 144 * 144 / q == pytest.approx(moved(in_two(q), *tensors(144, 144, 144)))


@pytest.mark.parametrize(("q", "d"), [(2, 2), (4, 2), (3, 3)])
def test_with_a_depth_tokens_lie_on_it_too_and_gradients_of_weights_are_added_over_it(q: int, d: int) -> None:
    """Colossal-AI's documentation, features/2p5D_tensor_parallel: 3 (q - 1) (d + 1) / (d q) of a matrix over q, for one size."""
    m, k, n = 36 * 5, 12 * 7, 12 * 11
    added = 2 * (d - 1) / d * k * n / q**2
    assert 3 * (q - 1) * (m * k / d + k * n) / q**2 + added == pytest.approx(moved(in_two(q, d), *tensors(m, k, n)))
    one = 144 * 144
    assert 3 * (q - 1) * (d + 1) / (d * q) * one / q == pytest.approx(
        moved(in_two(q, d), *tensors(144, 144, 144)) - 2 * (d - 1) / d * one / q**2
    )


@pytest.mark.parametrize("q", [2, 3])
def test_in_three_dimensions_each_matrix_moves_once_in_each_direction(q: int) -> None:
    """Colossal-AI's documentation, features/3D_tensor_parallel: 6 (q - 1) / q^3 of a matrix, for one size."""
    m, k, n = 36 * 5, 36 * 7, 36 * 11
    assert 2 * (q - 1) * (m * k + k * n + m * n) / q**3 == pytest.approx(
        moved(in_three(q), *tensors(m, k, n), kept=True)
    )
    assert 6 * (q - 1) / q**3 * 108 * 108 == pytest.approx(moved(in_three(q), *tensors(108, 108, 108), kept=True))
    assert 9 * (q - 1) / q**3 * 108 * 108 == pytest.approx(moved(in_three(q), *tensors(108, 108, 108)))


@pytest.mark.parametrize(
    ("layout", "local"),
    [
        (in_two(2), [(128, 512), (512, 128), (8, 128), (8, 512)]),
        (in_two(2, 2), [(128, 512), (512, 128), (4, 128), (4, 512)]),
        (in_three(2), [(128, 256), (512, 64), (4, 128), (4, 512)]),
    ],
    ids=["2D", "2.5D", "3D"],
)
def test_local_sizes_are_those_of_the_worked_examples(layout: Layout, local: list[tuple[int, ...]]) -> None:
    """Colossal-AI's documentation, features/2D, 2p5D and 3D_tensor_parallel: 256 x 1024 and 1024 x 256 for 16 x 256 on 4 or 8 ranks."""
    x, w, y = tensors(16, 256, 1024)
    v = w.view(*w.dims[::-1])
    assert local == [tuple(d.size for d in layout.local_tensor(tensor).dims) for tensor in (w, v, x, y)]


@pytest.mark.parametrize(
    "layout",
    [in_two(2), in_two(3), in_two(2, 2), in_two(1, 2), in_three(2)],
    ids=lambda layout: "x".join(str(n) for _, n in layout.mesh),
)
def test_the_derived_collectives_give_the_numbers_of_one_rank(layout: Layout) -> None:
    size = 2 * math.prod(n for _, n in layout.mesh)
    tokens, widths = (Dim("batch", size), Dim("sequence", 3)), (Dim("hidden", size), Dim("ffn", size))
    for dims in (widths, widths[::-1], (*widths, widths[0]), (widths[0], Dim("scores", 5))):
        xs = tuple(Tensor(f"x{i}", (*tokens, d), 2.0) for i, d in enumerate(dims))
        ws = tuple(Tensor(f"w{i}", pair, 2.0, "weight") for i, pair in enumerate(itertools.pairwise(dims)))
        StrategyContract.check_numbers(layout, Chain(xs, ws), np.random.default_rng(7))


def test_of_two_axes_the_one_that_cut_last_is_gathered_first() -> None:
    ranks, x, shard = SimulatedRanks((("a", 2), ("b", 2))), (Dim("x", 4),), Shard("x")
    parts = ranks.place(np.arange(4.0), x, {"b": shard, "a": shard})
    assert [0.0, 2.0, 1.0, 3.0] == [float(part[0]) for part in parts.values()]
    moves = redistribute({"b": shard, "a": shard}, {})
    assert ["a", "b"] == [move.axis for move in moves]
    assert [0.0, 1.0, 2.0, 3.0] == ranks.change(parts, x, moves)[0, 0].tolist()
    assert [0.0, 1.0, 2.0, 3.0] != ranks.change(parts, x, moves[::-1])[0, 0].tolist()


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            (Dim("batch", 6), Dim("hidden", 8)),
            r"layout 'two' lays batch of 'x' on the 4 ranks of mesh axes 'depth' and 'rows', but 6 / 4 is no whole number. Nearest: 3",
        ),
        (
            (Dim("batch", 8), Dim("hidden", 7)),
            r"layout 'two' lays hidden of 'x' on the 2 ranks of mesh axis 'cols', but 7 / 2 is no whole number. Nearest: 1 ranks",
        ),
        (
            (Dim("hidden", 8), Dim("ffn", 8)),
            r"layout 'two' lays ffn and hidden of \(hidden, ffn\) both on mesh axis 'cols'; an axis divides one",
        ),
    ],
)
def test_what_cannot_lie_so_is_refused(dims: tuple[Dim, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        in_two(2, 2).check([Tensor("x", dims, 2.0)])


def test_a_rule_that_names_an_axis_twice_is_refused() -> None:
    wrong = (
        "layout 'twice' lays batch on mesh axis 'rows' twice; a dimension is cut by an axis once. Nearest: rows, cols"
    )
    with pytest.raises(LayoutError, match=wrong):
        Layout("twice", (("rows", 2), ("cols", 2)), (rule(("rows", "cols", "rows"), "batch"),))
