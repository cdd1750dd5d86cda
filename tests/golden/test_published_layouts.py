"""Planners of layouts: what their papers say comes out, on layers of transformers and on one product."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.errors import SpecError
from simulator.planners import PLANNERS
from simulator.planners.frontier import frontier
from simulator.planners.mcmc import difference
from simulator.planners.problems.layouts import Layouts, make_layouts
from simulator.studies.layout_figures import model_blocks
from simulator.workload.graph import Dim, LayerGraph, Product, Tensor
from simulator.workload.model import load_model

HALVES = (("first", 2), ("second", 2), ("third", 2))


def layer(model: str, batch: int, mesh: tuple[tuple[str, int], ...], memory: float = math.inf) -> Layouts:
    one = load_model(model)
    blocks = model_blocks(one, batch, one.sequence_length, one.vocabulary)
    return make_layouts(max(blocks, key=lambda block: block.count).graph, mesh, memory)


def divided(problem: Layouts, planner: str) -> dict[str, str]:
    plan = PLANNERS.get(planner).solve(problem).plan
    said = zip(problem.names, problem.labels, plan, strict=True)
    return {name: " ".join(labels[choice]).replace("on:", "") for name, labels, choice in said}


def one_product(m: int, n: int, k: int, mesh: tuple[tuple[str, int], ...]) -> Layouts:
    rows, inner, columns = Dim("rows", m), Dim("inner", k), Dim("columns", n)
    x, y, w = (
        Tensor("x", (rows, inner), 2.0),
        Tensor("y", (rows, columns), 2.0),
        Tensor("w", (inner, columns), 2.0, "weight"),
    )
    product = Product(label="product", inputs=(x,), outputs=(y,), weights=(w,))
    return make_layouts(LayerGraph(kind="one", inputs=(x,), ops=(product,), outputs=(y,), weights=(w,)), mesh)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("shape", [(64, 16, 16), (16, 64, 16), (16, 16, 64), (64, 64, 16), (32, 32, 32)])
def test_recursive_halving_of_a_product_moves_the_least_bytes(shape: tuple[int, int, int], axes: int) -> None:
    """ToFu: 2, 4 and 8 ways, against all divisions."""
    problem = one_product(*shape, HALVES[:axes])
    least = PLANNERS.get("exhaustive").solve(problem).cost
    assert PLANNERS.get("recursive").solve(problem).cost == least
    assert PLANNERS.get("elimination").solve(problem).cost == least


def test_few_tokens_are_divided_as_megatron_does() -> None:
    """T5's wide layers: heads and then what they join, columns of the MLP and then its rows, tokens between: four sums of the stream."""
    problem = layer("t5_11b", 1, (("on", 4),))
    found = divided(problem, "elimination")
    assert {found[name] for name in ("qkv", "attention", "projection")} == {"heads"}
    assert {found[name] for name in ("mlp up", "gelu", "mlp down")} == {"ffn"}
    stream = 512 * 1024 * 2.0
    norms = 2 * problem.costs[problem.names.index("mlp norm")].max()
    cost = PLANNERS.get("elimination").solve(problem).cost
    assert cost == pytest.approx(4 * 2 * (4 - 1) * stream + norms, rel=1e-12)


def test_many_tokens_are_divided_by_sequences() -> None:
    """Gradients of 12 h^2 weights against four sums of b s h numbers: all sequences apart win from b s = 3 h = 2,304 tokens on."""
    assert set(divided(layer("gpt2_124m", 64, (("on", 4),)), "elimination").values()) == {"batch"}
    assert "ffn" in divided(layer("gpt2_124m", 2, (("on", 4),)), "elimination").values()


def test_the_frontier_goes_down_and_ends_with_the_least_bytes() -> None:
    problem = layer("gpt2_124m", 8, (("on", 4),))
    points = frontier(problem)
    held, moved = zip(*((held, moved) for held, moved, _ in points), strict=True)
    assert list(held) == sorted(held)
    assert list(moved) == sorted(moved, reverse=True)
    assert len(points) > 1
    assert moved[-1] == pytest.approx(PLANNERS.get("elimination").solve(problem).cost)
    middle = layer("gpt2_124m", 8, (("on", 4),), memory=held[0])
    assert PLANNERS.get("frontier").solve(middle).cost == pytest.approx(moved[0])


def test_a_proposal_priced_alone_is_priced_to_the_last_bit() -> None:
    problem = layer("llama3_8b", 2, (("on", 8),))
    random = np.random.default_rng(5)
    plan = [int(random.integers(len(costs))) for costs in problem.costs]
    now = problem.moved(tuple(plan))
    for _ in range(500):
        number = int(random.integers(len(plan)))
        choice = int(random.integers(len(problem.costs[number])))
        now += difference(problem, plan, number, choice)
        plan[number] = choice
        assert now == problem.moved(tuple(plan))


def test_a_chain_finds_the_best_layout_of_a_layer_within_a_tenth() -> None:
    for model, batch in (("gpt2_124m", 2), ("llama3_8b", 1), ("t5_11b", 1)):
        problem = layer(model, batch, (("on", 4),))
        best = PLANNERS.get("elimination").solve(problem).cost
        assert PLANNERS.get("mcmc").solve(problem).cost <= 1.1 * best


@pytest.mark.parametrize(("model", "batch"), [("gpt2_124m", 2), ("llama3_8b", 1), ("t5_11b", 1)])
def test_a_tree_search_with_propagation_finds_the_best_in_some_dozens_of_layouts(model: str, batch: int) -> None:
    """Automap: columns, then rows, with the four sums of a layer (`test_few_tokens_are_divided_as_megatron_does`)."""
    problem = layer(model, batch, (("on", 4),))
    found = PLANNERS.get("tree_search").solve(problem)
    assert found.cost == PLANNERS.get("elimination").solve(problem).cost
    assert found.history[-1][0] <= 50


@pytest.mark.parametrize(("model", "batch"), [("gpt2_124m", 2), ("llama3_8b", 1), ("t5_11b", 1)])
def test_learned_values_find_the_best_after_more_layouts_than_a_tree(model: str, batch: int) -> None:
    """Layouts priced until within 5 % of the best: some hundreds, where the tree search needs some dozens."""
    problem = layer(model, batch, (("on", 4),))
    best = PLANNERS.get("elimination").solve(problem).cost
    needed = {}
    for name in ("q_learning", "tree_search"):
        found = PLANNERS.get(name).solve(problem)
        assert found.cost == best
        needed[name] = next(count for count, _, cost in found.history if cost <= 1.05 * best)
    assert needed["tree_search"] < 50 < needed["q_learning"] < 400


@pytest.mark.parametrize("mesh", [(("on", 8),), pytest.param((("first", 2), ("second", 2)), marks=pytest.mark.slow)])
def test_alpas_integer_programme_loses_nothing(mesh: tuple[tuple[str, int], ...]) -> None:
    """Without a limit of memory what elimination finds, with one what the frontier does."""
    free = layer("gpt2_124m", 8, mesh)
    found = PLANNERS.get("alpa_layout").solve(free)
    assert found.cost == PLANNERS.get("elimination").solve(free).cost
    assert found.gap == pytest.approx(0, abs=1e-6)
    points = frontier(free)
    tight = layer("gpt2_124m", 8, mesh, memory=points[len(points) // 2][0] * (1 + 1e-6))
    least = PLANNERS.get("frontier").solve(tight).cost
    assert least > found.cost
    assert PLANNERS.get("alpa_layout").solve(tight).cost == least


def test_layers_with_experts_are_refused() -> None:
    one = load_model("mixtral_8x7b")
    graph = model_blocks(one, 1, one.sequence_length, one.vocabulary)[1].graph
    with pytest.raises(SpecError, match="deals rows out to experts"):
        make_layouts(graph, (("on", 8),))
    with pytest.raises(SpecError, match="axes of two ranks or more"):
        make_layouts(graph, (("on", 1),))
