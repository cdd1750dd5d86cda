"""From tables on a disk to the numbers of a kernel model: the work of `dtsim calibrate gemm`, `attention`, `memory`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.files import digests
from simulator.calibration.kernels.attention import (
    attention_errors,
    fit_attention,
    leave_shapes_out,
    read_attention_csv,
)
from simulator.calibration.kernels.gemm import fit_gemm, gemm_errors, leave_models_out, read_gemm_csv
from simulator.calibration.kernels.memory_bound import (
    fit_memory_bound,
    memory_errors,
    read_memory_csv,
)
from simulator.calibration.kernels.residuals import rounded_residuals
from simulator.errors import CalibrationError, SimulatorError
from simulator.hardware.compute_coefficients import (
    AttentionCoefficients,
    GemmCoefficients,
    MemoryBoundCoefficients,
    load_attention_coefficients,
    load_gemm_coefficients,
    load_memory_bound_coefficients,
)
from simulator.hardware.gpu import Gpu, load_gpu
from simulator.report.table import Section, Table, percent
from simulator.specs.written import spec_toml
from simulator.units import show

__all__ = ["KernelFit", "calibrate_kernels"]

_FREE = ("issue_efficiency", "prologue", "gradient_prologue", "small_tile_loss", "exposed_output")
_POWER = ("full_clock_power", "exponent")
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """A fit of one kind of kernel.

    Args:
        coefficients: the file's content.
        made: of what, and from how many rows.
        numbers: what was fitted, by name.
        remarks: what was noticed.
    """

    coefficients: GemmCoefficients | AttentionCoefficients | MemoryBoundCoefficients
    made: str
    numbers: dict[str, str]
    remarks: tuple[str, ...] = ()

    @property
    def figures(self) -> dict[str, Any]:
        """The fit for JSON."""
        return {
            "name": self.coefficients.name,
            "residuals": self.coefficients.residuals.model_dump(exclude_none=True),
            "sigma": self.coefficients.sigma,
            "numbers": self.numbers,
            "noticed": self.remarks,
        }

    def section(self) -> Section:
        """Return the fit to read."""
        r, name, sigma = self.coefficients.residuals, self.coefficients.name, self.coefficients.sigma
        out = (
            ""
            if r.left_out_p50 is None
            else f"; left out: p50 {percent(r.left_out_p50)}, p90 {percent(r.left_out_p90 or 0.0)}"
        )
        return Section(
            title=f"{name}: {r.points} measurements, error p50 {percent(r.p50)}, p95 {percent(r.p95)}{out}; "
            f"sigma {sigma:.3f}",
            table=Table(headings=("number", "value"), rows=tuple(self.numbers.items())),
            below=self.remarks,
        )

    def toml(self) -> str:
        """Return the file."""
        return spec_toml(self.coefficients, f"Made by dtsim calibrate {self.made}.")


def calibrate_kernels(kind: str, paths: Sequence[Path], gpu: str, name: str) -> KernelFit:
    """Return the fit of the measurements in these tables, all of one GPU.

    Args:
        kind: "gemm", "attention" or "memory".
        paths: CSV tables.
        gpu: the GPU of all rows; "" = the tables name one that is known.
        name: of the profile.

    Raises:
        CalibrationError: no table could be read, they are of several GPUs, or hold too little; SpecError: unknown GPU.
    """
    readers: dict[str, Callable[..., list[Any]]] = {
        "gemm": read_gemm_csv,
        "attention": read_attention_csv,
        "memory": read_memory_csv,
    }
    rows: list[Any] = []
    bad: list[str] = []
    for path in paths:
        try:
            found = readers[kind](path)
        except SimulatorError as error:
            bad.append(str(error))
            continue
        rows += found
        if not found:
            bad.append(f"{path}: holds no row about {kind}")
    if not rows:
        raise CalibrationError("no table could be used:\n" + "\n".join(f"  {line}" for line in bad))
    names = sorted({row.gpu for row in rows})
    if len(names) > 1 and not gpu:
        raise CalibrationError(
            f"one profile speaks for one GPU, but the tables name {', '.join(names[:8])}; split them"
        )
    device = load_gpu(gpu or names[0])
    source = f"fitted by dtsim calibrate {kind} on {datetime.date.today().isoformat()}; sha256 of {digests(paths)}"
    fit: Callable[..., KernelFit] = {"gemm": _gemm, "attention": _attention, "memory": _memory}[kind]
    return fit(rows, device, name, source, tuple(bad))


def _gemm(rows: list[Any], gpu: Gpu, name: str, source: str, bad: tuple[str, ...]) -> KernelFit:
    gpus = {row.gpu: gpu for row in rows}
    shapes = np.array([row.shape for row in rows])
    start = load_gemm_coefficients(gpu).model_copy(
        update={
            **_of(gpu, name),
            "dtypes": tuple(sorted({row.dtype for row in rows})),
            "notes": None,
            "fitted_smallest": int(shapes[:, 1:].min()),
            "fitted_largest": int(shapes[:, 1:].max()),
        }
    )
    free = [*_FREE, *(_POWER if len(rows) >= 30 else ())]
    free = [one for one in free if one != "gradient_prologue" or any(row.layout == "NT" for row in rows)]
    free = free[: max(1, len(rows) // 3)]
    remarks = list(bad)
    groups = {row.model for row in rows}
    if len(rows) >= 40 or len(groups) > 2:
        fitted, _ = leave_models_out(rows, start, gpus, free)
    else:
        fitted = fit_gemm(rows, start, gpus, free)
        fitted = fitted.model_copy(update=_spread(gemm_errors(rows, fitted, gpus)))
        remarks.append("too few measurements to leave shapes out: sigma is that of the fit itself")
    given = "; start, tiles, splits, bandwidth_fraction and misaligned_rate are those of the file it started from"
    fitted = fitted.model_copy(update={"sources": {"*": source + given}})
    numbers = {one: f"{getattr(fitted.clock if one in _POWER else fitted, one):.4g}" for one in free}
    made = f"gemm from {len(rows)} products"
    return KernelFit(coefficients=fitted, made=made, numbers=numbers, remarks=tuple(remarks))


def _attention(rows: list[Any], gpu: Gpu, name: str, source: str, bad: tuple[str, ...]) -> KernelFit:
    gpus = {row.gpu: gpu for row in rows}
    like = load_attention_coefficients(gpu)
    kernel = fit_attention(rows, like, gpus)
    errors = attention_errors(rows, kernel, like, gpus)
    remarks, left = list(bad), None
    try:
        left = leave_shapes_out(rows, like, gpus)
    except CalibrationError:
        remarks.append("too few measurements to leave shapes out: sigma is that of the fit itself")
    lengths = [row.shape[3] for row in rows]
    coefficients = like.model_copy(
        update={
            **_of(gpu, name),
            **_spread(errors if left is None else left),
            "notes": "One kernel was measured; all names stand for it.",
            "kernels": dict.fromkeys(like.kernels, kernel),
            "fitted_shortest": int(min(lengths)),
            "fitted_longest": int(max(lengths)),
            "residuals": rounded_residuals(errors, left, datetime.date.today().isoformat()),
            "sources": {"*": f"{source}; clock, start and bandwidth_fraction are those of the file it started from"},
        }
    )
    numbers = {
        f"{direction} {key}": f"{value:.4g}"
        for direction in ("forward", "backward")
        for key, value in getattr(kernel, direction).model_dump().items()
    }
    made = f"attention from {len(rows)} kernels"
    return KernelFit(coefficients=coefficients, made=made, numbers=numbers, remarks=tuple(remarks))


def _memory(rows: list[Any], gpu: Gpu, name: str, source: str, bad: tuple[str, ...]) -> KernelFit:
    share, fixed = fit_memory_bound(rows, gpu)
    errors = memory_errors(rows, share, fixed, gpu)
    left = _kernels_left_out(rows, gpu)
    like = load_memory_bound_coefficients(gpu)
    coefficients = like.model_copy(
        update={
            **_of(gpu, name),
            **_spread(errors if left is None else left),
            "bandwidth_fraction": share,
            "start": min(like.start, fixed),
            "ramp": max(0.0, fixed - like.start),
            "residuals": rounded_residuals(errors, left, datetime.date.today().isoformat()),
            "sources": {"*": source},
        }
    )
    numbers = {"bandwidth_fraction": f"{share:.3f}", "fixed time": show(fixed, "s")}
    return KernelFit(coefficients=coefficients, made=f"memory from {len(rows)} kernels", numbers=numbers, remarks=bad)


def _kernels_left_out(rows: list[Any], gpu: Gpu) -> Array | None:
    """Return the log errors of each kind of kernel under a fit of the others, None when there is one kind only."""
    kinds = sorted({row.op for row in rows})
    if len(kinds) < 2:
        return None
    out = np.zeros(len(rows))
    for kind in kinds:
        inside = [row for row in rows if row.op != kind]
        at = [i for i, row in enumerate(rows) if row.op == kind]
        if len(inside) < 4:
            return None
        out[at] = memory_errors([rows[i] for i in at], *fit_memory_bound(inside, gpu), gpu)
    return out


def _of(gpu: Gpu, name: str) -> dict[str, Any]:
    """The fields of a file that say what it is of."""
    return {"name": name, "architecture": gpu.architecture, "measured": (gpu.name,), "aliases": ()}


def _spread(errors: Array) -> dict[str, float]:
    """The fields of a file that say how far its prices are off, by log errors; elsewhere twice as far."""
    sigma = max(0.01, round(float(np.sqrt(np.mean(errors**2))), 4))
    return {"sigma": sigma, "sigma_outside": round(2 * sigma, 4)}
