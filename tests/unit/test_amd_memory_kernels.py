"""Kernels of AMD's GPUs that only move data, as others timed them: norms, rows copied in another order and back, their gradient."""

from __future__ import annotations

import pytest

from simulator.costs.memory_bound import memory_bound_seconds
from simulator.hardware.compute_coefficients import load_memory_bound_coefficients
from simulator.hardware.gpu import load_gpu

ROWS = 196_608 * 2048 * 2.0
"""Rows of experts in pytorch/ao pull request 4623, 16 bits."""
NORMS = [(4096, 3131.0), (8192, 3911.0), (16384, 3618.0), (4096, 2122.0), (6144, 3373.0), (7168, 3628.0)]
"""Width of 4,096 rows in 16 bits, GB/s of RMSNorm forward on MI300X (ROCm/aiter pull request 335)."""


def seconds(gpu: str, read: float, written: float, access: str) -> float:
    card = load_gpu(gpu)
    return float(memory_bound_seconds([read], [written], card, load_memory_bound_coefficients(card), [access])[0])


@pytest.mark.parametrize(
    ("gpu", "read", "written", "access", "milliseconds", "tolerance"),
    [
        ("mi350x", ROWS, ROWS, "gather", 0.427, 0.03),
        ("mi350x", ROWS, ROWS, "sorted", 1.804, 0.03),
        ("mi350x", ROWS, ROWS, "layer backward", 0.510, 0.25),
        ("mi350x", 2 * 2304 * 36864 * 2.0, 2304 * 36864 * 2.0, "layer backward", 0.249, 0.25),
        ("mi355x", 4096 * 7168 * 2.0, 4096 * 7168 * 2.0, "layer", 4096 * 7168 * 4e-6 / 3168, 0.15),
    ],
)
def test_kernels_take_as_long_as_others_measured(
    gpu: str, read: float, written: float, access: str, milliseconds: float, tolerance: float
) -> None:
    assert seconds(gpu, read, written, access) == pytest.approx(milliseconds * 1e-3, rel=tolerance)


def test_norms_of_mi300x_reach_the_mean_of_what_was_measured() -> None:
    ratios = [4096 * n * 4e-9 / gbs / seconds("mi300x", 4096 * n * 2.0, 4096 * n * 2.0, "layer") for n, gbs in NORMS]
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.05)
    assert sorted(abs(ratio - 1) for ratio in ratios)[-2] < 0.15  # one of two of the first width stands apart


@pytest.mark.parametrize(("gpu", "name"), [("mi325x", "memory_bound_cdna3"), ("mi350x", "memory_bound_cdna4")])
def test_each_generation_has_its_own_numbers(gpu: str, name: str) -> None:
    assert load_memory_bound_coefficients(load_gpu(gpu)).name == name
