"""Workstation and consumer cards: products and attention against published benchmarks, never with those of data centre chips."""

from __future__ import annotations

import math

import pytest

from simulator.costs.attention import attention_seconds
from simulator.costs.gemm import gemm_seconds
from simulator.hardware.compute_coefficients import (
    load_attention_coefficients,
    load_gemm_coefficients,
    load_memory_bound_coefficients,
)
from simulator.hardware.gpu import load_gpu


@pytest.mark.parametrize(
    ("name", "size", "tera"),
    [
        ("rtx_3090", 8192, 76.5),
        ("a40_48gb", 8192, 110.6),
        ("a10_24gb", 6888, 56.0),
        ("rtx_a6000", 8192, 123.3),
        ("rtx_a4000", 8192, 56.1),
        ("rtx_4090", 8192, 160.2),
        ("l4_24gb", 8192, 59.4),
        ("l40s", 8192, 207.0),
        ("rtx_5090", 8192, 234.9),
        ("rtx_pro_6000", 8192, 417.3),
        ("rtx_6000d", 8192, 141.3),
        ("mi210", 8192, 124.2),
        ("mi250x_gcd", 8192, 147.0),
    ],
)
def test_large_products_of_cards_run_as_benchmarks_measured_them(name: str, size: int, tera: float) -> None:
    gpu = load_gpu(name)
    seconds = gemm_seconds([(1, size, size, size)], ["NN"], ["bf16"], [False], gpu, load_gemm_coefficients(gpu))
    assert 2 * size**3 / seconds[0] == pytest.approx(tera * 1e12, rel=0.15)


@pytest.mark.parametrize(
    ("name", "tera"), [("a100_40gb_sxm", 18.5), ("v100_16gb_sxm2", 14.4), ("a40_48gb", 23.7), ("rtx_4090", 54.0)]
)
def test_products_in_fp32_run_at_a_rate_of_their_own(name: str, tera: float) -> None:
    gpu = load_gpu(name)
    for size in (8192, 8193):
        seconds = gemm_seconds([(1, size, size, size)], ["NN"], ["fp32"], [False], gpu, load_gemm_coefficients(gpu))
        assert 2 * size**3 / seconds[0] == pytest.approx(tera * 1e12, rel=0.12)


@pytest.mark.parametrize(("name", "forward", "backward"), [("rtx_a5000", 81.7, 74.8), ("mi250x_gcd", 84.9, 62.4)])
def test_attention_of_cards_runs_as_benchmarks_measured_it(name: str, forward: float, backward: float) -> None:
    gpu, work = load_gpu(name), 4 * 4 * 4096**2 * 32 * 64
    for direction, times, tera in (("forward", 1.0, forward), ("backward", 2.5, backward)):
        sizes = (4, 32, 32, 4096, 4096, 64)
        seconds = attention_seconds(*sizes, False, direction, "flash2", "fp16", gpu, load_attention_coefficients(gpu))
        assert times * work / float(seconds) == pytest.approx(tera * 1e12, rel=0.05)


@pytest.mark.parametrize("name", ["rtx_5090", "rtx_pro_6000", "rtx_6000d"])
def test_cards_of_blackwell_take_nothing_from_its_data_centre_chips(name: str) -> None:
    gpu = load_gpu(name)
    loaders = (load_gemm_coefficients, load_attention_coefficients, load_memory_bound_coefficients)
    assert all(load(gpu).name.endswith("_blackwell_rtx") for load in loaders)
    assert load_attention_coefficients(gpu).libraries["sdpa"] == "flash2"


def test_a_power_limit_slows_equal_chips_in_proportion() -> None:
    full = load_gpu("a40_48gb")
    rates = []
    for power in (300.0, 150.0):
        gpu = full.model_copy(update={"power": power})
        seconds = gemm_seconds([(1, 8192, 8192, 8192)], ["NN"], ["bf16"], [False], gpu, load_gemm_coefficients(gpu))
        rates.append(1 / seconds[0])
    assert math.isclose(rates[0] / rates[1], 2.0, rel_tol=0.05)
