"""Measured kernels that only move bytes -> the numbers of the memory-bound model.

    seconds = fixed + bytes / (share x bandwidth)

The table is a CSV with the columns op, bytes (read and written) and time_ms; optional gpu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.files import read_measurements
from simulator.errors import CalibrationError
from simulator.hardware.gpu import Gpu
from simulator.units import parse, plain_number

__all__ = ["KERNELS", "MemoryMeasurement", "fit_memory_bound", "memory_errors", "read_memory_csv"]

KERNELS = ("copy", "add", "layer_norm", "softmax", "adamw")
"""Kernels whose traffic is that of the GPU's own memory; other rows (launches, host copies) are passed over."""

_SHARES = (0.01, 1.0)
_SCALE = 0.1
_DIGITS = 3
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeasurement:
    """One measured kernel: its name, the bytes it reads and writes, its seconds, its GPU."""

    op: str
    traffic: float
    seconds: float
    gpu: str = ""


def read_memory_csv(path: Path | str) -> list[MemoryMeasurement]:
    """Return the kernels of a table that move bytes of the GPU's own memory.

    Raises:
        CalibrationError: no such file, a column is missing, or a number cannot be read; names file and line.
    """
    return read_measurements(path, "memory kernels", _measurement)


def _measurement(row: Mapping[str, str]) -> MemoryMeasurement | None:
    if row["op"] not in KERNELS:
        return None
    traffic, seconds = plain_number(row["bytes"]), parse(f"{row['time_ms']} ms", "s")
    if traffic <= 0 or seconds <= 0:
        raise ValueError(f"expected bytes and a time above zero, got {row['bytes']} in {row['time_ms']} ms")
    return MemoryMeasurement(op=row["op"], traffic=traffic, seconds=seconds, gpu=row.get("gpu") or "")


def memory_errors(measurements: Sequence[MemoryMeasurement], share: float, fixed: float, gpu: Gpu) -> Array:
    """Return log(predicted / measured) with a share [1] of the bandwidth and a fixed time [s]."""
    traffic = np.array([x.traffic for x in measurements])
    seconds = fixed + traffic / (share * gpu.memory_bandwidth)
    return np.asarray(np.log(seconds / np.array([x.seconds for x in measurements])))


def fit_memory_bound(measurements: Sequence[MemoryMeasurement], gpu: Gpu) -> tuple[float, float]:
    """Return (share of the bandwidth [1], fixed time [s]) that agree best: soft L1 in log time.

    Raises:
        CalibrationError: fewer than four kernels.
    """
    if len(measurements) < 4:
        raise CalibrationError(f"a fit of 2 numbers needs at least 4 kernels that move bytes, got {len(measurements)}")
    from scipy.optimize import least_squares

    quickest = min(x.seconds for x in measurements)
    found = least_squares(
        lambda z: memory_errors(measurements, z[0], float(np.exp(z[1])), gpu),
        (0.7, float(np.log(quickest / 2))),
        bounds=((_SHARES[0], float(np.log(quickest)) - 10.0), (_SHARES[1], float(np.log(quickest)) + 1.0)),
        loss="soft_l1",
        f_scale=_SCALE,
    ).x
    share, fixed = found[0], float(np.exp(found[1]))
    return round(float(share), _DIGITS), float(f"{fixed:.{_DIGITS}g}")
