"""Products on AMD's GPUs: the shipped numbers, kernels that no fit saw, and a mean over ten shapes that is published alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.kernels.gemm import GemmMeasurement, gemm_errors, read_gemm_csv
from simulator.costs.gemm import gemm_seconds
from simulator.hardware.compute_coefficients import load_gemm_coefficients
from simulator.hardware.gpu import load_gpu

TABLE = Path(__file__).parents[1] / "data" / "measured_products_amd.csv"
TYPICAL = [
    (m, n, k) for m in (32, 32768) for n, k in ((2112, 7168), (3072, 1536), (7168, 2048), (4608, 7168), (7168, 256))
]
"""Products of DeepSeek-V3 whose mean speed AMD publishes (rocm-blogs, Typical Attained FLOPs)."""


def far(rows: list[GemmMeasurement], gpu: str) -> float:
    device = load_gpu(gpu)
    return float(np.median(np.abs(np.expm1(gemm_errors(rows, load_gemm_coefficients(device), {gpu: device})))))


@pytest.mark.parametrize(
    ("gpu", "fitted", "points", "median"),
    [
        ("mi300x", True, 18, 0.06),
        ("mi325x", True, 2, 0.11),
        ("mi250_gcd", True, 48, 0.12),
        ("mi210", True, 10, 0.06),
        ("mi355x", True, 170, 0.06),
        ("mi355x", False, 87, 0.08),
    ],
)
def test_the_shipped_numbers_meet_the_products(gpu: str, fitted: bool, points: int, median: float) -> None:
    rows = [row for row in read_gemm_csv(TABLE, [gpu]) if row.model.startswith("other_") != fitted]
    assert len(rows) == points
    assert far(rows, gpu) < median


def test_odd_depths_cost_amd_nothing() -> None:
    rows = [row for row in read_gemm_csv(TABLE, ["mi250_gcd"]) if row.model == "hipblaslt_odd_depth"]
    assert len(rows) == 8
    assert far(rows, "mi250_gcd") < 0.2


def test_typical_products_are_slower_than_the_best() -> None:
    """616 TFLOP/s on MI325X, each product for thirty seconds; 736 by the numbers of A100."""
    device = load_gpu("mi325x")
    shapes = [(1, *shape) for shape in TYPICAL]
    seconds = gemm_seconds(shapes, ["TN"] * 10, ["bf16"] * 10, [False] * 10, device, load_gemm_coefficients(device))
    mean = sum(2.0 * m * n * k for m, n, k in TYPICAL) / seconds.sum()
    assert 0.95 < mean / 616e12 < 1.10
