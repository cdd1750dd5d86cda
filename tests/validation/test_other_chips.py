"""Chips that few publish of: products, attention and collectives of Ascend 910B and Intel's Max 1550."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from simulator.accuracy.gemm import gemm_outcomes
from simulator.costs.attention import attention_seconds
from simulator.hardware.compute_coefficients import load_attention_coefficients
from simulator.hardware.gpu import load_gpu
from simulator.studies.collective_figures import collective_figures

TABLE = Path(__file__).parents[1] / "data" / "other_chips.csv"
ASCEND, MAX = "ascend_910b", "max_1550_tile"
NODES = {"ascend_910b": "ascend_910b_x8", "a800_80gb_sxm": "hgx_a800"}


def rows(gpu: str, *kinds: str) -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return [row for row in read if row["gpu"] == gpu and row["op"] in kinds]


def errors_of_products(gpu: str) -> list[float]:
    outcomes = [o for some in gemm_outcomes(rows(gpu, "gemm")) for o in some]
    return [o.predicted / o.measured - 1.0 for o in outcomes if o.predicted and o.measured]


def test_products_are_as_fast_as_the_mechanism_of_all_chips_has_them() -> None:
    errors = errors_of_products(ASCEND)
    assert len(errors) == 9
    assert np.median(np.abs(errors)) < 0.03
    assert sorted(np.abs(errors))[-2] < 0.1
    assert errors[0] == max(errors) == pytest.approx(0.47, abs=0.02)  # 1,024 cubed


def test_attention_is_as_fast_as_published_beside_50_microseconds_of_the_host() -> None:
    gpu = load_gpu("ascend_910b")
    fitted = load_attention_coefficients(gpu)
    for row in rows(ASCEND, "attention"):
        tokens, dim = int(row["m"]), int(row["k"])
        measured = 4.0 * tokens**2 * dim / (float(row["tflops"]) * 1e12) - 50e-6
        took = attention_seconds(1, 1, 1, tokens, tokens, dim, False, "forward", "flash2", "bf16", gpu, fitted)
        assert float(took) == pytest.approx(measured, rel=0.07)


def test_products_of_a_max_1550_are_those_of_pytorchs_library() -> None:
    errors = errors_of_products(MAX)
    assert errors == pytest.approx(
        [0.36, 0.82, 0.0, 0.0], abs=0.02
    )  # 1,024 cubed; 256, 512 and 1,024 rows of 8,192 x 8,192


def test_attention_of_a_max_1550_is_as_fast_as_published() -> None:
    gpu = load_gpu(MAX)
    fitted = load_attention_coefficients(gpu)
    errors = []
    for row in rows(MAX, "attention"):
        sequences, tokens, dim = int(row["m"]), int(row["n"]), int(row["k"])
        heads = 2048 // dim
        took = attention_seconds(
            sequences, heads, heads, tokens, tokens, dim, False, "forward", "flash2", "fp16", gpu, fitted
        )
        errors.append(4e-12 * sequences * heads * tokens**2 * dim / float(took) / float(row["tflops"]) - 1.0)
    assert len(errors) == 7
    assert np.median(np.abs(errors)) < 0.07
    assert np.abs(errors).max() < 0.16


@pytest.mark.parametrize(("gpu", "median", "most"), [("ascend_910b", 0.08, 0.3), ("a800_80gb_sxm", 0.05, 0.35)])
def test_collectives_of_a_node_share_the_wires_of_each_pair(gpu: str, median: float, most: float) -> None:
    """Two chips of a full mesh have one of seven wires each."""
    found = rows(gpu, "all_gather", "all_reduce")
    rates = [
        collective_figures(row["op"], 1e9, NODES[gpu], int(row["ranks"])).algorithm_bandwidth / 1e9 for row in found
    ]
    errors = np.abs(np.array(rates) / [float(row["gbps"]) for row in found] - 1.0)
    assert len(errors) == 6
    assert np.median(errors) < median
    assert errors.max() < most
