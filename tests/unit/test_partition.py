"""Layouts: where tensors lie, the collectives between two places, and those around a product and its gradients."""

from __future__ import annotations

import pytest

from simulator.errors import LayoutError, PlanError
from simulator.partition.compose import compose
from simulator.partition.layout import PARTIAL, REPLICATE, Layout, Placement, Shard, rule
from simulator.partition.propagate import product_steps, seen_as_made
from simulator.partition.redistribute import Move, collective, moved_bytes, redistribute
from simulator.partition.strategies.context import HEADS as HEADS_OF
from simulator.partition.strategies.context import QUERIES, AttentionExchange, attention_exchange
from simulator.workload.graph import Dim, Tensor

BATCH, SEQUENCE, HIDDEN, FFN = Dim("batch", 2), Dim("sequence", 16), Dim("hidden", 64), Dim("ffn", 256)
HEADS, KEYS, WIDTH = Dim("heads", 8), Dim("kv_heads", 4, "heads"), Dim("head_dim", 8)
X = Tensor("x", (BATCH, SEQUENCE, HIDDEN), 2.0)
INNER = Tensor("inner", (BATCH, SEQUENCE, FFN), 2.0)
UP, DOWN = Tensor("up weight", (HIDDEN, FFN), 2.0, "weight"), Tensor("down weight", (FFN, HIDDEN), 2.0, "weight")
S, H = Shard("sequence"), Shard("heads")
PLAIN, TOKENS = compose("megatron", 4), compose("megatron", 4, sequence_parallel=True)


@pytest.mark.parametrize(
    ("held", "wanted", "name", "matrices"),
    [
        (S, S, "", 0.0),
        (S, H, "all_to_all", 3 / 4),
        (S, REPLICATE, "all_gather", 3.0),
        (PARTIAL, S, "reduce_scatter", 3.0),
        (PARTIAL, REPLICATE, "all_reduce", 6.0),
        (REPLICATE, S, "", 0.0),
        (REPLICATE, REPLICATE, "", 0.0),
        (PARTIAL, PARTIAL, "", 0.0),
    ],
)
def test_every_change_of_placement_is_one_collective_of_known_size(
    held: Placement, wanted: Placement, name: str, matrices: float
) -> None:
    assert name == collective(held, wanted)
    assert matrices * 1000.0 == moved_bytes(Move("tensor", held, wanted), 1000.0, 4)


@pytest.mark.parametrize("held", [S, REPLICATE])
def test_nothing_is_made_a_sum_again(held: Placement) -> None:
    with pytest.raises(LayoutError, match="cannot be made a sum"):
        collective(held, PARTIAL)


def test_axes_are_changed_one_by_one_and_cut_last() -> None:
    moves = redistribute({"a": REPLICATE, "b": S, "c": H}, {"a": S, "b": REPLICATE, "c": H})
    assert [("b", "all_gather"), ("a", "")] == [(m.axis, m.collective) for m in moves]


def around(layout: Layout, left: Tensor, right: Tensor, out: Tensor) -> list[str]:
    """The collectives around a product, the gradient of its left and that of its right operand, in the order they are needed."""
    return [
        f"{name} {what}"
        for steps, names in zip(
            product_steps(layout, left, right, out),
            (("x", "w", "y"), ("dy", "w", "dx"), ("x", "dy", "dw")),
            strict=True,
        )
        for moves, what in zip((steps.first, steps.second, steps.result), names, strict=True)
        for name in (m.collective for m in moves)
        if name
    ]


@pytest.mark.parametrize(
    ("layout", "product", "found"),
    [
        (PLAIN, (X, UP, INNER), ["all_reduce dx"]),
        (PLAIN, (INNER, DOWN, X), ["all_reduce y"]),
        (TOKENS, (X, UP, INNER), ["all_gather x", "reduce_scatter dx", "all_gather x"]),
        (TOKENS, (INNER, DOWN, X), ["reduce_scatter y", "all_gather dy", "all_gather dy"]),
        (PLAIN, (X, UP.view(HIDDEN, Dim("scores", 4)), X.view(BATCH, SEQUENCE, Dim("scores", 4))), []),
        (TOKENS, (X, UP.view(HIDDEN, Dim("scores", 4)), X.view(BATCH, SEQUENCE, Dim("scores", 4))), ["all_reduce dw"]),
        (compose("megatron", 1), (X, UP, INNER), []),
    ],
    ids=["columns", "rows", "columns of tokens", "rows to tokens", "whole", "tokens alone", "one rank"],
)
def test_the_collectives_around_a_product_follow_from_its_dimensions(
    layout: Layout, product: tuple[Tensor, Tensor, Tensor], found: list[str]
) -> None:
    assert found == around(layout, *product)


def test_an_mlp_of_mesh_tensorflow_moves_what_its_paper_counts() -> None:
    """Shazeer et al., arXiv 1811.02084: all ranks split the batch, or the inner width, of x w v; bytes per rank of a ring."""
    n, b, io, h = 4, 8, 16, 32
    batch, outer, inner = Dim("b", b), Dim("io", io), Dim("h", h)
    x, w, y = Tensor("x", (batch, outer), 4.0), Tensor("w", (outer, inner), 4.0), Tensor("y", (batch, inner), 4.0)
    v, z = Tensor("v", (inner, outer), 4.0), Tensor("z", (batch, outer), 4.0)

    def per_rank(dim: str, backward: bool) -> float:
        layout = Layout("mesh", (("all", n),), (rule("all", dim),))
        total = 0.0
        for left, right, out in ((x, w, y), (y, v, z)):
            forward, to_left, to_right = product_steps(layout, left, right, out)
            chosen = ((to_left, left), (to_right, right)) if backward else ((forward, out),)
            total += sum(moved_bytes(m, t.bytes, n) / n for steps, t in chosen for m in steps.result)
        return total

    assert (0.0, 2 * (n - 1) / n * 2 * io * h * 4.0) == (per_rank("b", False), per_rank("b", True))
    assert [2 * (n - 1) / n * b * io * 4.0] * 2 == [per_rank("h", False), per_rank("h", True)]


def test_heads_come_before_tokens_and_keys_lie_with_the_heads_they_serve() -> None:
    q, k = (BATCH, SEQUENCE, HEADS, WIDTH), (BATCH, SEQUENCE, KEYS, WIDTH)
    assert (H, Shard("kv_heads")) == (TOKENS.placement(q)["tensor"], TOKENS.placement(k)["tensor"])
    assert (S, REPLICATE) == (TOKENS.placement(X.dims)["tensor"], PLAIN.placement(X.dims)["tensor"])
    assert ([2, 16, 2, 8], [2, 16, 1, 8]) == tuple([d.size for d in TOKENS.local(dims)] for dims in (q, k))


def test_the_first_token_lies_where_its_sequence_does() -> None:
    first = X.view(BATCH, HIDDEN)
    assert REPLICATE == TOKENS.placement(first.dims)["tensor"]
    assert S == TOKENS.placement(seen_as_made(TOKENS, first, X).dims)["tensor"]
    assert first == seen_as_made(PLAIN, first, X)


def test_rows_of_experts_lie_on_their_own_axes_and_the_fullest_rank_has_more() -> None:
    layout = compose("megatron", 4, True, expert=8, expert_tensor=1, imbalance=1.25)
    weight = (Dim("experts", 16), HIDDEN, Dim("expert_ffn", 128))
    assert (8, 4 / 1.25) == (layout.ways(weight), layout.ways((Dim("expert_rows", 64), HIDDEN)))
    assert 8 * 4 == compose("megatron", 4, True, expert=8, expert_tensor=4).ways(weight)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            Tensor("odd heads", (BATCH, Dim("heads", 6)), 2.0),
            r"layout 'megatron' lays heads of 'odd heads' on the 4 ranks of mesh axis 'tensor', but 6 / 4 is no whole number. "
            r"Nearest: 3 ranks.",
        ),
        (
            Tensor("both", (HEADS, FFN), 2.0),
            r"layout 'megatron' lays ffn and heads of \(heads, ffn\) both on mesh axis 'tensor'; an axis divides one dimension",
        ),
    ],
)
def test_what_cannot_lie_so_is_refused_with_tensor_dimension_and_axis(tensor: Tensor, message: str) -> None:
    PLAIN.check([X, INNER, UP])
    with pytest.raises(PlanError, match=message):
        PLAIN.check([X, tensor])


def test_attention_divided_by_heads_or_by_queries_needs_what_ulysses_and_rings_do() -> None:
    assert AttentionExchange("all_to_all", "all_to_all", "all_to_all", "all_to_all") == attention_exchange(HEADS_OF)
    assert AttentionExchange("", "all_gather", "", "reduce_scatter") == attention_exchange(QUERIES)
