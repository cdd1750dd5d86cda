"""A chip of which only the data sheet is known, Ascend 910B: products and collectives that nothing was fitted to."""

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

TABLE = Path(__file__).parents[1] / "data" / "ascend_910b.csv"
NODES = {"ascend_910b": "ascend_910b_x8", "a800_80gb_sxm": "hgx_a800"}


def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def test_products_are_as_fast_as_the_mechanism_of_all_chips_has_them() -> None:
    outcomes = [o for some in gemm_outcomes([row for row in rows() if row["op"] == "gemm"]) for o in some]
    assert len(outcomes) == 9
    errors = [o.predicted / o.measured - 1.0 for o in outcomes if o.predicted and o.measured]
    assert np.median(np.abs(errors)) < 0.03
    assert sorted(np.abs(errors))[-2] < 0.1
    assert errors[0] == max(errors) == pytest.approx(0.47, abs=0.02)  # 1,024 cubed


def test_attention_is_as_fast_as_published_beside_50_microseconds_of_the_host() -> None:
    gpu = load_gpu("ascend_910b")
    fitted = load_attention_coefficients(gpu)
    for row in [row for row in rows() if row["op"] == "attention"]:
        tokens, dim = int(row["m"]), int(row["k"])
        measured = 4.0 * tokens**2 * dim / (float(row["tflops"]) * 1e12) - 50e-6
        took = attention_seconds(1, 1, 1, tokens, tokens, dim, False, "forward", "flash2", "bf16", gpu, fitted)
        assert float(took) == pytest.approx(measured, rel=0.07)


@pytest.mark.parametrize(("gpu", "median", "most"), [("ascend_910b", 0.08, 0.3), ("a800_80gb_sxm", 0.05, 0.35)])
def test_collectives_of_a_node_share_the_wires_of_each_pair(gpu: str, median: float, most: float) -> None:
    """Two chips of a full mesh have one of seven wires each."""
    found = [row for row in rows() if row["gpu"] == gpu and row["gbps"]]
    rates = [
        collective_figures(row["op"], 1e9, NODES[gpu], int(row["ranks"])).algorithm_bandwidth / 1e9 for row in found
    ]
    errors = np.abs(np.array(rates) / [float(row["gbps"]) for row in found] - 1.0)
    assert len(errors) == 6
    assert np.median(errors) < median
    assert errors.max() < most
