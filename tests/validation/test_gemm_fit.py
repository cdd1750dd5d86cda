"""The GEMM model against measurements, with the files as shipped and with whole models left out of the fit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.kernels.gemm import (
    GemmMeasurement,
    fit_gemm,
    gemm_errors,
    leave_models_out,
    model_groups,
    read_gemm_csv,
)
from simulator.costs.gemm import gemm_seconds
from simulator.errors import CalibrationError
from simulator.hardware.compute_coefficients import load_gemm_coefficients
from simulator.hardware.gpu import load_gpu

SAMPLE = Path(__file__).parents[1] / "data" / "gemm_sample.csv"
FREE = ("issue_efficiency", "prologue", "small_tile_loss", "exposed_output", "full_clock_power", "exponent")


def of(*names):
    return read_gemm_csv(SAMPLE, names), {name: load_gpu(name) for name in names}


def sizes(errors):
    return np.abs(np.expm1(errors))


@pytest.mark.parametrize(
    ("gpu", "model", "median", "p90"),
    [
        ("a100_80gb_pcie", "hidden", 0.03, 0.12),
        ("a100_80gb_sxm", "reference", 0.05, 0.10),
        ("h100_80gb_sxm", "reference", 0.10, 0.20),
        ("h200_141gb_sxm", "reference", 0.10, 0.20),
        ("b300_sxm", "reference", 0.05, 0.08),
        ("gb200", "reference", 0.05, 0.10),
        ("b200_sxm", "rows", 0.12, 0.20),
    ],
)
def test_the_shipped_numbers_meet_the_measurements(gpu, model, median, p90):
    rows, gpus = of(gpu)
    rows = [x for x in rows if x.model.startswith(model)]
    found = sizes(gemm_errors(rows, load_gemm_coefficients(gpus[gpu]), gpus))
    assert np.quantile(found, 0.5) < median
    assert np.quantile(found, 0.9) < p90


def test_a_machine_measured_by_its_owner_has_numbers_of_its_own():
    rows, gpus = of("b200_sxm")
    rows = [x for x in rows if x.model.startswith("hidden")]
    own = sizes(gemm_errors(rows, load_gemm_coefficients(gpus["b200_sxm"], "gemm_b200_simumax"), gpus))
    other = gemm_errors(rows, load_gemm_coefficients(gpus["b200_sxm"]), gpus)
    assert np.quantile(own, 0.5) < 0.10
    assert np.quantile(own, 0.9) < 0.33
    assert np.quantile(other, 0.5) < -0.1  # other B200 are faster


def test_a_model_that_the_fit_never_saw_is_priced_as_well():
    rows, gpus = of("a100_80gb_pcie")
    rows = [x for x in rows if x.model.startswith("hidden")]
    start = load_gemm_coefficients(gpus["a100_80gb_pcie"], "gemm_any")
    fitted, left = leave_models_out(rows, start, gpus, FREE)
    errors = sizes(np.concatenate(list(left.values())))
    assert len(errors) == len(rows)
    assert np.quantile(errors, 0.5) < 0.03
    assert np.quantile(errors, 0.9) < 0.12
    assert fitted.residuals.left_out_p50 == pytest.approx(np.quantile(errors, 0.5), abs=1e-4)
    assert fitted.sigma == pytest.approx(np.sqrt(np.mean(np.log1p(errors) ** 2)), rel=0.3)


def test_a_fit_finds_the_numbers_that_made_the_measurements():
    gpu = load_gpu("a100_80gb_pcie")
    truth = load_gemm_coefficients(gpu).model_copy(update={"issue_efficiency": 0.7, "prologue": 150.0})
    shapes = [(1, m, n, k) for m in (1024, 4096) for n in (768, 5120, 8192) for k in (512, 2048, 8192)]
    count = len(shapes)
    times = gemm_seconds(shapes, ["TN"] * count, ["bf16"] * count, [False] * count, gpu, truth)
    rows = [
        GemmMeasurement(gpu="g", shape=s, layout="TN", dtype="bf16", accumulates=False, seconds=float(t))
        for s, t in zip(shapes, times, strict=True)
    ]
    found = fit_gemm(rows, load_gemm_coefficients(gpu), {"g": gpu}, ("issue_efficiency", "prologue"))
    assert found.issue_efficiency == pytest.approx(0.7, rel=0.02)
    assert found.prologue == pytest.approx(150.0, rel=0.1)
    assert found.residuals.p95 < 0.01


def test_models_are_told_apart_by_the_sizes_their_weights_share():
    def row(n, k, layout="TN"):
        shape = (1, 4096, n, k) if layout != "NT" else (1, n, k, 4096)
        return GemmMeasurement(gpu="g", shape=shape, layout=layout, dtype="bf16", accumulates=False, seconds=1.0)

    rows = [row(1536, 5120), row(5120, 3072), row(24576, 5120, "NT"), row(7168, 16384), row(2048, 7168, "NN")]
    assert ["5120", "5120", "5120", "7168", "7168"] == model_groups(rows)


def test_too_few_measurements_are_refused():
    rows, gpus = of("a100_80gb_sxm")
    start = load_gemm_coefficients(gpus["a100_80gb_sxm"])
    with pytest.raises(CalibrationError, match=re.escape("a fit of 6 numbers needs 18 measurements, got 4")):
        fit_gemm(rows, start, gpus, FREE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,m,n,k,dtype\ng,1,2,3,bf16\n", "needs the column 'tflops'"),
        ("gpu,m,n,k,dtype,tflops\ng,1,2,x,bf16,5\n", "line 2: could not convert"),
        ("gpu,m,n,k,dtype,tflops\ng,1,0,3,bf16,5\n", "line 2: expected sizes and a speed above zero"),
        ("# source\ngpu,m,n,k,dtype,time_ms\ng,1,2,3,bf16,-1\n", "line 3: expected sizes and a speed above zero"),
        ("gpu,m,n,k,dtype,tflops,layout\ng,1,2,3,bf16,5,TT\n", "line 2: expected a layout out of TN, NN, NT, got 'TT'"),
        ("gpu,m,n,k,dtype,tflops\ng,1,2,3,bf16,0\n", "line 2: expected sizes and a speed above zero"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CalibrationError, match=re.escape(message)):
        read_gemm_csv(path)


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(CalibrationError, match="cannot be read"):
        read_gemm_csv(tmp_path / "none.csv")
