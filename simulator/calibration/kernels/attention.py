"""Measured attention kernels -> the numbers of the attention model: read a table, fit, judge with shapes left out, write.

The table is a CSV with the columns gpu, seq_len, heads, head_dim, causal, direction (fwd, bwd, fwd+bwd), dtype and time_ms;
optional ones are op (rows other than attention are passed over), batch, kv_heads, v_head_dim and window (keys that a query sees at
most).  Where there is no
time_ms, tflops are taken, with masked scores not counted (FlashAttention's convention).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.files import read_measurements
from simulator.costs.attention import attention_seconds
from simulator.costs.gemm import BENCHMARK_REPEATS
from simulator.errors import CalibrationError
from simulator.hardware.compute_coefficients import (
    AttentionCoefficients,
    AttentionKernel,
    AttentionPass,
)
from simulator.hardware.gpu import Gpu
from simulator.units import parse, plain_number

__all__ = [
    "LIMITS",
    "AttentionMeasurement",
    "attention_errors",
    "fit_attention",
    "leave_shapes_out",
    "read_attention_csv",
]

LIMITS: dict[str, tuple[float, float]] = {
    "rate": (0.2, 1.3),
    "softmax_cost": (0.0, 100.0),
    "overhead": (0.0, 600.0),
    "tail": (0.0, 1.5),
    "wide_rate": (0.5, 1.2),
}
"""Numbers of one direction that a fit may move, and between what."""

_START = {"rate": 0.7, "softmax_cost": 22.0, "overhead": 170.0, "tail": 0.5, "wide_rate": 0.9}
_DIRECTIONS = {"fwd": "forward", "forward": "forward", "bwd": "backward", "backward": "backward", "fwd+bwd": "both"}
_DIGITS = 3
"""Of a fitted number, as it is written and judged."""
_PASSES = {"forward": ("forward",), "backward": ("backward",), "both": ("forward", "backward")}
_WORK = {"forward": 4.0, "backward": 10.0, "both": 14.0}
_KERNEL = "fitted"
_WIDE = 128.0
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMeasurement:
    """One measured kernel, or a forward and a backward together.

    Args:
        gpu: as the table names it.
        direction: "forward", "backward" or "both".
        shape: batch, heads, kv_heads, sequence length, head dimension (mean of both where they differ).
        causal: whether masked.
        dtype: number format.
        seconds: measured time [s].
        repeats: how many a benchmark ran in a row.
        window: keys that a query sees at most; 0 = all before it.
    """

    gpu: str
    direction: str
    shape: tuple[float, float, float, float, float]
    causal: bool
    dtype: str
    seconds: float
    repeats: float = BENCHMARK_REPEATS
    window: float = 0.0


def read_attention_csv(path: Path | str) -> list[AttentionMeasurement]:
    """Return the attention kernels of a table.

    Raises:
        CalibrationError: no such file, a column is missing, or a number cannot be read; names file and line.
    """

    def made(row: Mapping[str, str]) -> AttentionMeasurement | None:
        wanted = row.get("op", "attention") == "attention"
        return _measurement(row) if wanted else None

    return read_measurements(path, "attention", made)


def _measurement(row: Mapping[str, str]) -> AttentionMeasurement:
    direction = _DIRECTIONS.get((row.get("direction") or "fwd").lower())
    if direction is None:
        raise ValueError(f"expected a direction out of fwd, bwd, fwd+bwd, got {row['direction']!r}")
    length, heads, width = (plain_number(row[key]) for key in ("seq_len", "heads", "head_dim"))
    batch, kv_heads = plain_number(row.get("batch") or 1), plain_number(row.get("kv_heads") or heads)
    width = (width + plain_number(row.get("v_head_dim") or width)) / 2
    causal = float(row["causal"] or 0) > 0
    if min(length, heads, width, batch, kv_heads) < 1:
        raise ValueError("expected sizes of at least 1")
    if row.get("time_ms"):
        seconds = parse(f"{row['time_ms']} ms", "s")
    else:
        work = _WORK[direction] * batch * heads * length**2 * width * (0.5 if causal else 1.0)
        seconds = work / parse(f"{row['tflops']} TFLOP/s", "FLOP/s")
    if seconds <= 0:
        raise ValueError(f"expected a time above zero, got {row.get('time_ms') or row.get('tflops')}")
    return AttentionMeasurement(
        gpu=row["gpu"],
        direction=direction,
        shape=(batch, heads, kv_heads, length, width),
        causal=causal,
        dtype=row["dtype"],
        seconds=seconds,
        window=plain_number(row.get("window") or 0),
    )


def attention_errors(
    measurements: Sequence[AttentionMeasurement],
    kernel: AttentionKernel,
    like: AttentionCoefficients,
    gpus: Mapping[str, Gpu],
) -> Array:
    """Return log(predicted / measured) of each kernel.

    Args:
        kernel: its numbers.
        like: clock, start and bandwidth share are taken from it.
        gpus: the GPU that each name in the measurements stands for.
    """
    coefficients = like.model_copy(update={"kernels": {_KERNEL: kernel}})
    total = np.zeros(len(measurements))
    for key in {(x.gpu, x.dtype, x.direction) for x in measurements}:
        rows = [i for i, x in enumerate(measurements) if (x.gpu, x.dtype, x.direction) == key]
        batch, heads, kv_heads, length, width = np.array([measurements[i].shape for i in rows]).T
        causal = np.array([measurements[i].causal for i in rows])
        repeats = np.array([measurements[i].repeats for i in rows])
        window = np.array([measurements[i].window for i in rows])
        for one in _PASSES[key[2]]:
            shape = (batch, heads, kv_heads, length, length, width, causal)
            total[rows] += attention_seconds(
                *shape, one, _KERNEL, key[1], gpus[key[0]], coefficients, window=window, repeats=repeats
            )
    return np.asarray(np.log(total / np.array([x.seconds for x in measurements])))


def fit_attention(
    measurements: Sequence[AttentionMeasurement],
    like: AttentionCoefficients,
    gpus: Mapping[str, Gpu],
    tiles: tuple[int, int] = (128, 128),
    scale: float = 0.05,
    fastest: float = LIMITS["rate"][1],
    longest: float = LIMITS["overhead"][1],
) -> AttentionKernel:
    """Return the kernel that agrees best with the measurements (soft L1 in log time).

    Args:
        like: clock, start and bandwidth share.
        gpus: the GPU that each name in the measurements stands for.
        tiles: rows of a block, forward and backward.
        scale: log error above which a measurement counts linearly, no longer with its square.
        fastest: upper limit of the rate.
        longest: upper limit of the overhead; windows tell start and end of a loop apart from its products.

    Raises:
        CalibrationError: fewer measurements than numbers to fit.
    """
    passes = sorted({one for x in measurements for one in _PASSES[x.direction]}, reverse=True)
    passes.sort(key=("forward", "backward").index)
    wide = any(x.shape[4] > _WIDE for x in measurements)
    free = [(one, name) for one in passes for name in LIMITS if wide or name != "wide_rate"]
    if len(measurements) < max(len(free), 1):
        raise CalibrationError(f"a fit of {len(free)} numbers needs as many kernels at least, got {len(measurements)}")
    from scipy.optimize import least_squares

    limits = LIMITS | {"rate": (LIMITS["rate"][0], fastest), "overhead": (LIMITS["overhead"][0], longest)}
    low, high = (np.array([limits[name][side] for _, name in free]) for side in (0, 1))
    first = np.clip((np.array([_START[name] for _, name in free]) - low) / (high - low), 0.02, 0.98)

    def kernel(z: Array, digits: int = 17) -> AttentionKernel:
        values = {one: dict(_START) for one in ("forward", "backward")}
        for (one, name), value in zip(free, low + z * (high - low), strict=True):
            values[one][name] = float(f"{value:.{digits}g}")
        if len(passes) == 1:
            values = {one: values[passes[0]] for one in values}
        forward, backward = (AttentionPass(tile=t, **values[o]) for o, t in zip(values, tiles, strict=True))
        return AttentionKernel(measured=True, forward=forward, backward=backward)

    best = least_squares(
        lambda z: attention_errors(measurements, kernel(z), like, gpus),
        first,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=scale,
        diff_step=0.001,
    )
    return kernel(best.x, _DIGITS)


def leave_shapes_out(
    measurements: Sequence[AttentionMeasurement],
    like: AttentionCoefficients,
    gpus: Mapping[str, Gpu],
    tiles: tuple[int, int] = (128, 128),
    scale: float = 0.05,
) -> Array:
    """Return the log errors under fits that never saw the GPU, heads, head dimension and direction of the measurement."""

    def group(x: AttentionMeasurement) -> tuple[object, ...]:
        return x.gpu, x.shape[1], x.shape[4], x.direction

    out = np.zeros(len(measurements))
    for name in {group(x) for x in measurements}:
        inside = [x for x in measurements if group(x) != name]
        rows = [i for i, x in enumerate(measurements) if group(x) == name]
        kernel = fit_attention(inside, like, gpus, tiles, scale)
        out[rows] = attention_errors([measurements[i] for i in rows], kernel, like, gpus)
    return out
