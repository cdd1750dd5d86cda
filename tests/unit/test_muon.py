"""Muon: products for every matrix of a layer, shared among the ranks that share states; Adam for all else."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import Plan, Prediction, Workload, load_cluster, load_model, simulate
from simulator.errors import PlanError
from simulator.program.program import COLLECTIVE, Segment

ITERATIONS = 5


def predict(gpus: int = 1, optimizer: str = "muon", model: str = "gpt2_124m", **plan: Any) -> Prediction:
    work = Workload(model=load_model(model), sequence_length=1024, global_batch_size=16, optimizer=optimizer)
    return simulate(work, Plan(**plan), load_cluster("dgx_h100", gpus))


def products(prediction: Prediction) -> float:
    """FLOPs of the update's products on a rank."""
    return sum(
        count * float(table.flops[[work == "gemm" for work in table.work]].sum())
        for item in prediction.program.items
        if isinstance(item, Segment) and item.phase == "optimizer"
        for table, count in item.pieces
    )


def matrices(hidden: int, layers: int) -> float:
    """FLOPs of one iteration on each matrix of a GPT's layers: 4 m m n + 2 m m m."""
    shapes = [(hidden, hidden)] * 4 + [(hidden, 4 * hidden)] * 2
    return layers * sum(4.0 * m * m * n + 2.0 * m**3 for m, n in shapes)


def test_each_matrix_takes_three_products_an_iteration() -> None:
    assert ITERATIONS * matrices(768, 12) == products(predict())
    assert products(predict(optimizer="adam")) == 0.0


def test_ranks_that_share_states_share_the_products() -> None:
    alone, shared = predict(8), predict(8, zero_stage=1)
    assert products(shared) == products(alone) / 8  # 48 and 24 matrices
    assert shared.breakdown["optimizer"] < alone.breakdown["optimizer"]


def test_moments_of_matrices_are_one_and_of_tables_two() -> None:
    model = load_model("gpt2_124m")
    inside = 12 * (4 * 768**2 + 2 * 4 * 768**2)
    states = predict().memory.by_category[0, 2]
    assert states == pytest.approx(12.0 * model.parameters - 4.0 * inside, rel=0.01)  # a master weight of 4 bytes each
    assert predict(optimizer="adam").memory.by_category[0, 2] == pytest.approx(12.0 * model.parameters, rel=0.01)


def test_shards_of_matrices_go_to_the_rank_that_needs_them_and_back() -> None:
    tables = [
        table
        for item in predict(8, zero_stage=3, framework="torchtitan").program.items
        if isinstance(item, Segment)
        for table, _ in item.pieces
    ]
    sent = [
        float(t.message[i])
        for t in tables
        for i in range(len(t))
        if t.kind[i] == COLLECTIVE and "matrices" in t.label[i]
    ]
    assert sent == pytest.approx([2.0 * 12 * 12 * 768**2 / 8] * 2, rel=0.01)


def test_experts_are_matrices_of_their_own() -> None:
    plain, split = (predict(8, model="mixtral_8x7b", zero_stage=1, expert_parallel=e) for e in (1, 8))
    assert products(plain) == pytest.approx(products(split), rel=0.15)


def test_the_host_has_no_products() -> None:
    with pytest.raises(PlanError, match="run on the GPU"):
        predict(optimizer_offload=1.0)


def test_the_products_are_the_published_part_of_training() -> None:
    """Jordan et al. 2024: at most T m / B of the FLOPs of forward and backward; as much for square matrices."""
    tokens, hidden = 524_288, 768
    trained = 6.0 * tokens * 12 * 12 * hidden**2
    assert 0.8 < ITERATIONS * matrices(hidden, 12) / trained / (ITERATIONS * hidden / tokens) < 0.85
