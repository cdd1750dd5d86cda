"""Measured products -> the numbers of the GEMM model: read a table, fit, judge with whole models left out, write TOML.

The table is a CSV with the columns gpu, m, n, k, dtype and tflops or time_ms; optional ones are op (rows other than
gemm and bmm are passed over), batch, layout, accumulate, out_dtype, model (the group to leave out together) and weight.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.files import read_measurements
from simulator.calibration.kernels.residuals import rounded_residuals
from simulator.costs.gemm import BENCHMARK_REPEATS, gemm_seconds
from simulator.errors import CalibrationError
from simulator.hardware.compute_coefficients import GemmCoefficients
from simulator.hardware.gpu import Gpu
from simulator.program.calls import ORDERS
from simulator.units import parse, plain_number

__all__ = [
    "BOUNDS",
    "GemmMeasurement",
    "fit_gemm",
    "gemm_errors",
    "leave_models_out",
    "model_groups",
    "read_gemm_csv",
]

BOUNDS: dict[str, tuple[float, float]] = {
    "issue_efficiency": (0.4, 1.2),
    "prologue": (0.0, 600.0),
    "gradient_prologue": (0.0, 400.0),
    "turned_rate": (0.5, 1.0),
    "small_tile_loss": (0.0, 1.0),
    "wave_softening": (0.0, 0.98),
    "exposed_output": (0.0, 2.0),
    "full_clock_power": (100.0, 6000.0),
    "exponent": (0.1, 1.0),
    "boost_window": (0.0, 0.2),
    "fp8_energy": (0.2, 1.2),
    "fp4_energy": (0.05, 1.0),
}
"""Numbers that a fit may move, and between what; powers in W, times in s, the rest as in `GemmCoefficients`."""

_CLOCK = ("full_clock_power", "exponent", "boost_window")
_SCALE = 0.05
"""Log error above which a measurement counts linearly, no longer with its square."""
_PER_NUMBER = 3
_NEGLIGIBLE = 0.0001
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmMeasurement:
    """One measured product.

    Args:
        gpu: as the table names it.
        shape: batch, m, n, k.
        layout: TN, NN or NT.
        dtype: number format.
        accumulates: whether it was added into an fp32 buffer.
        seconds: measured time [s].
        model: group left out together; "" to be found from the shapes.
        weight: in the fit.
        repeats: how many a benchmark ran in a row.
    """

    gpu: str
    shape: tuple[int, int, int, int]
    layout: str
    dtype: str
    accumulates: bool
    seconds: float
    model: str = ""
    weight: float = 1.0
    repeats: float = BENCHMARK_REPEATS


def read_gemm_csv(path: Path | str, gpus: Sequence[str] | None = None) -> list[GemmMeasurement]:
    """Return the products of a table, of these GPUs (all if None); lines with # before the table are passed over.

    Raises:
        CalibrationError: no such file, a column is missing, or a row's number cannot be read; names file and line.
    """

    def made(row: Mapping[str, str]) -> GemmMeasurement | None:
        wanted = row.get("op", "gemm") in ("gemm", "bmm") and (gpus is None or row["gpu"] in gpus)
        return _measurement(row) if wanted else None

    return read_measurements(path, "GEMMs", made)


def _measurement(row: Mapping[str, str]) -> GemmMeasurement:
    m, n, k = (int(plain_number(row[c])) for c in ("m", "n", "k"))
    batch = int(plain_number(row.get("batch") or 1))
    layout = row.get("layout") or "TN"
    if layout not in ORDERS:
        raise ValueError(f"expected a layout out of {', '.join(ORDERS)}, got {layout!r}")
    timed = bool(row.get("time_ms"))
    value = parse(f"{row['time_ms']} ms", "s") if timed else parse(f"{row['tflops']} TFLOP/s", "FLOP/s")
    if min(batch, m, n, k) < 1 or value <= 0.0:
        what = row["time_ms"] + " ms" if timed else row["tflops"] + " TFLOP/s"
        raise ValueError(f"expected sizes and a speed above zero, got {batch} x {m} x {n} x {k} at {what}")
    repeats = plain_number(row.get("repeats") or BENCHMARK_REPEATS)
    if repeats < 1.0:
        raise ValueError(f"repeats are how often a benchmark ran the product, at least 1, but are {repeats:g}")
    return GemmMeasurement(
        gpu=row["gpu"],
        shape=(batch, m, n, k),
        layout=layout,
        dtype=row["dtype"],
        accumulates=float(row.get("accumulate") or 0) > 0 and row.get("out_dtype") == "fp32",
        seconds=value if timed else 2.0 * batch * m * n * k / value,
        model=row.get("model") or "",
        weight=plain_number(row.get("weight") or 1.0),
        repeats=repeats,
    )


def gemm_errors(
    measurements: Sequence[GemmMeasurement], coefficients: GemmCoefficients, gpus: Mapping[str, Gpu]
) -> Array:
    """Return log(predicted / measured) of each product.

    Args:
        gpus: the GPU that each name in the measurements stands for.
    """
    log = np.zeros(len(measurements))
    for name in dict.fromkeys(x.gpu for x in measurements):
        rows = [i for i, x in enumerate(measurements) if x.gpu == name]
        some = [measurements[i] for i in rows]
        seconds = gemm_seconds(
            [x.shape for x in some],
            [x.layout for x in some],
            [x.dtype for x in some],
            [x.accumulates for x in some],
            gpus[name],
            coefficients,
            [x.repeats for x in some],
        )
        log[rows] = np.log(seconds / [x.seconds for x in some])
    return log


def fit_gemm(
    measurements: Sequence[GemmMeasurement],
    start: GemmCoefficients,
    gpus: Mapping[str, Gpu],
    free: Sequence[str],
) -> GemmCoefficients:
    """Return `start` with the numbers `free` moved to fit the measurements (soft L1 in log time), and its residuals.

    Args:
        free: out of `BOUNDS`.

    Raises:
        CalibrationError: fewer than three measurements per free number.
    """
    needed = _PER_NUMBER * len(free)
    if len(measurements) < max(needed, 1):
        raise CalibrationError(f"a fit of {len(free)} numbers needs {needed} measurements, got {len(measurements)}")
    from scipy.optimize import least_squares

    weight = np.sqrt([x.weight for x in measurements])
    low, high = (np.array([BOUNDS[name][side] for name in free]) for side in (0, 1))
    first = np.array([_read(start, name) for name in free])
    best = None
    for factor in (1.0, 0.7, 1.3):
        guess = np.clip((first * factor - low) / (high - low), 0.005, 0.995)
        result = least_squares(
            lambda z: weight * gemm_errors(measurements, _moved(start, free, low + z * (high - low)), gpus),
            guess,
            bounds=(0.0, 1.0),
            loss="soft_l1",
            f_scale=_SCALE,
            diff_step=0.001,
            max_nfev=60,
        )
        if best is None or result.cost < best.cost:
            best = result
    if best is None:
        raise CalibrationError("the fit found nothing")
    values = np.where(best.x < _NEGLIGIBLE, low, low + best.x * (high - low))
    fitted = _moved(start, free, [float(f"{v:.3g}") for v in values])
    errors = gemm_errors(measurements, fitted, gpus)
    return fitted.model_copy(update={"residuals": rounded_residuals(errors, None, datetime.date.today().isoformat())})


def leave_models_out(
    measurements: Sequence[GemmMeasurement],
    start: GemmCoefficients,
    gpus: Mapping[str, Gpu],
    free: Sequence[str],
) -> tuple[GemmCoefficients, dict[str, Array]]:
    """Return the fit to all measurements, and for each model its log errors under a fit that never saw it.

    `sigma` of the fit returned is the root mean square of those errors; outside the fitted range it is doubled.
    """
    fitted = fit_gemm(measurements, start, gpus, free)
    groups = model_groups(measurements)
    left: dict[str, Array] = {}
    for name in sorted(set(groups)):
        inside = [x for x, g in zip(measurements, groups, strict=True) if g != name]
        outside = [x for x, g in zip(measurements, groups, strict=True) if g == name]
        left[name] = gemm_errors(outside, fit_gemm(inside, fitted, gpus, free), gpus)
    errors = np.concatenate(list(left.values()))
    size = np.abs(np.expm1(errors))
    sigma = _rounded(np.sqrt(np.mean(errors**2)))
    p50, p90 = (_rounded(np.quantile(size, q)) for q in (0.5, 0.9))
    residuals = fitted.residuals.model_copy(update={"left_out_p50": p50, "left_out_p90": p90})
    return fitted.model_copy(update={"residuals": residuals, "sigma": sigma, "sigma_outside": 2 * sigma}), left


def model_groups(measurements: Sequence[GemmMeasurement]) -> list[str]:
    """Return for each product its model: the one written, or else the commonest size among the weights' sides.

    >>> shape = (1, 4096, 1536, 5120)
    >>> row = GemmMeasurement(gpu="g", shape=shape, layout="TN", dtype="bf16", accumulates=False, seconds=1.0)
    >>> model_groups([row])
    ['1536']
    """
    sides = [_weight_sides(x) for x in measurements]
    groups = [x.model for x in measurements]
    while "" in groups:
        open_sides = [size for pair, group in zip(sides, groups, strict=True) if not group for size in set(pair)]
        values, counts = np.unique(open_sides, return_counts=True)
        common = int(values[np.argmax(counts)])
        groups = [g or (str(common) if common in pair else "") for pair, g in zip(sides, groups, strict=True)]
    return groups


def _rounded(value: float) -> float:
    return round(float(value), 4)


def _read(c: GemmCoefficients, name: str) -> float:
    return float(getattr(c.clock if name in _CLOCK else c, name))


def _moved(c: GemmCoefficients, free: Sequence[str], values: Sequence[float] | Array) -> GemmCoefficients:
    new = dict(zip(free, (float(v) for v in values), strict=True))
    clock = c.clock.model_copy(update={k: v for k, v in new.items() if k in _CLOCK})
    return c.model_copy(update={k: v for k, v in new.items() if k not in _CLOCK} | {"clock": clock})


def _weight_sides(x: GemmMeasurement) -> tuple[int, int]:
    _, m, n, k = x.shape
    return (m, n) if x.layout == "NT" else (n, k)
