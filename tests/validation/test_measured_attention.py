"""Attention forward of four cards that one collector timed alike: nothing of Hopper and A100 was fitted to it."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from simulator.accuracy.gemm import gemm_outcomes

TABLE = Path(__file__).parents[1] / "data" / "measured_attention.csv"


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, bool], list[float]]:
    """[(gpu, whether causal)] log of predicted over measured time."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for row, (outcome,) in zip(rows, gemm_outcomes(rows), strict=True):
        assert outcome.predicted is not None, (outcome.case_id, outcome.reason)
        assert outcome.measured is not None
        found[row["gpu"], row["causal"] == "1"].append(float(np.log(outcome.predicted / outcome.measured)))
    return found


@pytest.mark.parametrize(
    ("gpu", "causal", "points", "median", "p90"),
    [
        ("a100_80gb_sxm", True, 40, 0.04, 0.10),
        ("h100_80gb_sxm", False, 80, 0.045, 0.12),
        ("h200_141gb_sxm", False, 80, 0.045, 0.12),
        ("h100_80gb_sxm", True, 40, 0.11, 0.18),
        ("h200_141gb_sxm", True, 40, 0.12, 0.23),
        ("l40s", False, 40, 0.065, 0.18),
        ("l40s", True, 80, 0.06, 0.14),
    ],
)
def test_attention_runs_as_it_was_timed(
    errors: dict[tuple[str, bool], list[float]], gpu: str, causal: bool, points: int, median: float, p90: float
) -> None:
    far = np.abs(np.expm1(errors[gpu, causal]))
    assert len(far) == points
    assert np.quantile(far, 0.5) < median
    assert np.quantile(far, 0.9) < p90
