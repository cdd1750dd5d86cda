"""Products of eight cards that one collector timed alike: the shipped numbers, and cards left out of a fit."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.calibration.kernels.gemm import GemmMeasurement, fit_gemm, gemm_errors, read_gemm_csv
from simulator.hardware.compute_coefficients import load_gemm_coefficients
from simulator.hardware.gpu import load_gpu

DATA = Path(__file__).parents[1] / "data"
SAMPLE = DATA / "measured_products.csv"


def far(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.abs(np.expm1(errors)))


def of(gpu: str) -> list[GemmMeasurement]:
    return read_gemm_csv(SAMPLE, [gpu])


@pytest.mark.parametrize(
    ("gpu", "points", "median", "p90"),
    [
        ("a100_80gb_sxm", 150, 0.09, 0.36),
        ("h100_80gb_sxm", 400, 0.045, 0.14),
        ("h200_141gb_sxm", 400, 0.05, 0.17),
        ("b200_sxm", 400, 0.08, 0.18),
        ("gb200", 400, 0.08, 0.18),
        ("b300_sxm", 250, 0.065, 0.18),
        ("gb300", 300, 0.06, 0.17),
        ("l40s", 540, 0.09, 0.23),
    ],
)
def test_the_shipped_numbers_meet_the_products(gpu: str, points: int, median: float, p90: float) -> None:
    rows, device = of(gpu), load_gpu(gpu)
    found = far(gemm_errors(rows, load_gemm_coefficients(device), {gpu: device}))
    assert len(found) == points
    assert np.quantile(found, 0.5) < median
    assert np.quantile(found, 0.9) < p90


@pytest.mark.parametrize(("dtype", "bias"), [("bf16", 0.03), ("fp8", 0.06)])
def test_no_format_is_priced_to_one_side(dtype: str, bias: float) -> None:
    biases = []
    for gpu in ("h100_80gb_sxm", "h200_141gb_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "l40s"):
        rows, device = [row for row in of(gpu) if row.dtype == dtype], load_gpu(gpu)
        biases.append(float(np.median(gemm_errors(rows, load_gemm_coefficients(device), {gpu: device}))))
    assert abs(np.mean(biases)) < bias


def test_a_card_that_the_fit_never_saw_is_priced_as_well() -> None:
    """H200, by a fit to H100 alone that starts far from it."""
    seen, unseen = of("h100_80gb_sxm")[::4], of("h200_141gb_sxm")
    gpus = {name: load_gpu(name) for name in ("h100_80gb_sxm", "h200_141gb_sxm")}
    start = load_gemm_coefficients(gpus["h100_80gb_sxm"]).model_copy(update={"issue_efficiency": 0.9, "prologue": 60.0})
    fitted = fit_gemm(seen, start, gpus, ("issue_efficiency", "prologue", "full_clock_power"))
    assert np.quantile(far(gemm_errors(unseen, fitted, gpus)), 0.5) < 0.055


def test_a_large_card_follows_from_a_small_one_under_its_limit_of_power() -> None:
    """L40S at 350 W, by a fit to L4 at 72 W and to two cards that no limit holds: one energy per operation, A100's exponent."""
    names = {"NVIDIA L4": "l4_24gb", "NVIDIA L20": "l20_48gb", "NVIDIA GeForce RTX 4090": "rtx_4090"}
    gpus = {name: load_gpu(name) for name in (*names.values(), "l40s")}
    with (DATA / "held_out_kernels.csv").open(encoding="utf-8", newline="") as file:
        table = [r for r in csv.DictReader(file) if r["op"] == "gemm" and r["dtype"] in ("bf16", "fp16")]
    seen = [
        GemmMeasurement(
            gpu=names[row["gpu"]],
            shape=(1, size, size, size),
            layout="TN",
            dtype="bf16",
            accumulates=False,
            seconds=2.0 * size**3 / (float(row["tflops"]) * 1e12),
        )
        for row in table
        if row["gpu"] in names and (size := int(row["m"])) > 2048
    ]
    start = load_gemm_coefficients(gpus["l40s"])
    start = start.model_copy(update={"clock": start.clock.model_copy(update={"full_clock_power": 401.0})})
    fitted = fit_gemm(seen, start, gpus, ("full_clock_power", "prologue", "wave_softening"))
    unseen = [row for row in of("l40s") if row.dtype == "bf16"]
    errors = gemm_errors(unseen, fitted, gpus)
    assert np.quantile(far(errors), 0.5) < 0.11
    assert abs(np.median(errors)) < 0.05
