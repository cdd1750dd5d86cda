"""Kernels of 31 sources that no price was first made from: what of them was fitted since stays apart from what never was."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from simulator.accuracy.gemm import gemm_outcomes

TABLE = Path(__file__).parents[1] / "data" / "held_out_kernels.csv"
FITTED = (
    "DeepGEMM pull request 74",
    "DeepGEMM pull request 168",
    "vllm pull request 49363",
    "FBGEMM pull request 2546",
    "pytorch pull request 156203",
    "ROCm/flash-attention issue 142",
    "YHs_Sample issue 4",
    "ring-attention issue 10",
    "rocm-libraries issue 9453",
    *(f"torch-performance-test-data issue {issue}" for issue in (78, 79, 107, 120, 124, 140, 180, 185)),
)
"""Ends of the places whose rows a calibration or a constant was fitted to, after a first prediction."""


@pytest.fixture(scope="module")
def errors() -> dict[str, list[tuple[float, bool]]]:
    """[kind] (log of predicted over measured speed, whether the band holds it)."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for row, (outcome,) in zip(rows, gemm_outcomes(rows), strict=True):
        assert outcome.predicted is not None, (outcome.case_id, outcome.reason)
        assert outcome.measured is not None
        assert outcome.low is not None
        assert outcome.high is not None
        error = np.log(outcome.predicted / outcome.measured) * (-1.0 if outcome.quantity == "time_ms" else 1.0)
        held = outcome.low <= outcome.measured <= outcome.high
        kind = row["op"] if row["op"] in ("gemm", "grouped_gemm", "attention") else "streams"
        kind = "unfused" if "unfused" in row["software"] else kind
        ratio = (
            row["software"] == "torch sdpa" and "triton issue 507" in row["source_loc"]
        )  # to FlashAttention-2 beside it
        found["fitted" if ratio or row["source_loc"].endswith(FITTED) else kind].append((float(error), held))
    return found


@pytest.mark.parametrize(
    ("kind", "points", "median", "p90", "band"),
    [
        ("gemm", 120, 0.14, 0.46, 0.72),
        ("grouped_gemm", 26, 0.14, 0.47, 0.65),
        ("attention", 61, 0.13, 0.33, 0.62),
        ("unfused", 15, 0.16, 0.49, 0.55),
        ("streams", 14, 0.15, 0.33, 0.65),
        ("fitted", 143, 0.06, 0.20, 0.91),
    ],
)
def test_kernels_are_priced_as_well_as_they_were(
    errors: dict[str, list[tuple[float, bool]]], kind: str, points: int, median: float, p90: float, band: float
) -> None:
    far = np.abs(np.expm1([error for error, _ in errors[kind]]))
    assert len(far) == pytest.approx(points, abs=3)
    assert np.quantile(far, 0.5) < median
    assert np.quantile(far, 0.9) < p90
    assert np.mean([held for _, held in errors[kind]]) > band
