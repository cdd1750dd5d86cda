"""Measured slowdowns of overlapping work -> an interference file: the work of `dtsim calibrate overlap`.

    product beside a copy                    -> slowdown beside `copy`
    product beside k held multiprocessors    -> 1 / (1 - lost x k / all of them)   -> slowdown beside `tp`, `dp`, `pp`

A collective holds one multiprocessor per channel: as many as NCCL opens for a group in a node (tp) or across nodes (dp),
two for messages between pipeline ranks (pp).  A processor has none to hold: its collectives copy memory, so they count
as copies.  Activities that the table does not hold take the figures of products, as in the file that ships.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.calibration.files import digests, read_table
from simulator.errors import CalibrationError, SimulatorError
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.gpu import Gpu, load_gpu
from simulator.hardware.interference import Interference
from simulator.report.table import Section, Table, percent
from simulator.specs import CsvRows
from simulator.specs.written import spec_toml

__all__ = ["OverlapFit", "OverlapMeasurement", "calibrate_overlap", "read_overlap_csv"]

_COLUMNS = ("gpu", "kind", "beside", "alone_s", "beside_s")
_KINDS = ("gemm", "memory")
_MOST = 100.0
_MESSAGES = 2
"""Channels of a message between pipeline ranks."""
_CARDS = 8
"""Channels that NCCL finds across nodes, one per network card, before it doubles them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapMeasurement:
    """One row: what was slowed ("gemm", "memory"), by how many held multiprocessors (None = a copy), how many times."""

    gpu: str
    kind: str
    held: int | None
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapFit:
    """A fitted interference file.

    Args:
        interference: its content.
        lost: share of a held multiprocessor's work that is lost [1]; None without such rows.
        remarks: what was noticed.
    """

    interference: Interference
    lost: float | None
    remarks: tuple[str, ...]

    @property
    def figures(self) -> dict[str, Any]:
        """The fit for JSON."""
        return self.interference.model_dump(exclude_none=True) | {
            "lost_per_held": self.lost,
            "noticed": list(self.remarks),
        }

    def section(self) -> Section:
        """Return the fit to read."""
        found = self.interference
        rows = tuple(
            (first, second, f"{factor:.3f}") for first, row in found.slowdown.items() for second, factor in row.items()
        )
        return Section(
            title=f"{found.name}: {found.points} measurements of {', '.join(found.measured)}, error p50 "
            f"{percent(found.residual_p50 or 0.0)}, p95 {percent(found.residual_p95 or 0.0)}",
            table=Table(headings=("activity", "beside", "times longer"), rows=rows, left=(0, 1)),
            below=self.remarks,
        )

    def toml(self) -> str:
        """Return the file."""
        points = self.interference.points
        return spec_toml(self.interference, f"Made by dtsim calibrate overlap from {points} measurements.")


def read_overlap_csv(path: Path | str) -> list[OverlapMeasurement]:
    """Return the rows of a table that `dtsim measure overlap` wrote.

    Raises:
        CalibrationError: no such file, a column is missing, or a value cannot be; names file and line.
    """
    lines = [line for line in read_table(path).splitlines() if not line.startswith("#")]
    reader = CsvRows(lines, str(path), CalibrationError)
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise CalibrationError(
            f"{path}: expected the table of dtsim measure overlap, with the columns {', '.join(_COLUMNS)}; it has no "
            f"{', '.join(missing)}"
        )
    return [_row(row, f"{path}, line {number}") for number, row in enumerate(reader, 2)]


def _row(row: dict[str, str], where: str) -> OverlapMeasurement:
    held = re.fullmatch(r"(\d+) multiprocessors?", (row["beside"] or "").strip())
    if held is None and (row["beside"] or "").strip() != "copy":
        raise CalibrationError(f"{where}: beside must be 'copy' or 'K multiprocessors', got {row['beside']!r}")
    if row["kind"] not in _KINDS:
        raise CalibrationError(f"{where}: kind must be {' or '.join(_KINDS)}, got {row['kind']!r}")
    try:
        alone, beside = float(row["alone_s"]), float(row["beside_s"])
    except (TypeError, ValueError):
        raise CalibrationError(f"{where}: alone_s and beside_s must be numbers, got {row}") from None
    if not (0 < alone < math.inf and 0 < beside < math.inf and 1 / _MOST < beside / alone < _MOST):
        raise CalibrationError(
            f"{where}: seconds must be above zero and the slowdown below {_MOST:g} and above {1 / _MOST:g}, got {alone} s alone "
            f"and {beside} s beside"
        )
    return OverlapMeasurement(
        gpu=row["gpu"], kind=row["kind"], held=int(held.group(1)) if held else None, slowdown=beside / alone
    )


def calibrate_overlap(paths: Sequence[Path], gpu: str, name: str) -> OverlapFit:
    """Return the interference that these tables show.

    Args:
        paths: tables of `dtsim measure overlap`, all of one device.
        gpu: its name among the GPUs, where it holds multiprocessors; "" = as the tables name it.
        name: of the file.

    Raises:
        CalibrationError: no table could be used, or they are of several devices; SpecError: an unknown GPU.
    """
    rows, bad = [], []
    for path in paths:
        try:
            rows += read_overlap_csv(path)
        except SimulatorError as error:
            bad.append(str(error))
    devices = sorted({row.gpu for row in rows})
    if not rows:
        raise CalibrationError("\n".join(["no table could be used:", *(f"  {line}" for line in bad)]))
    if len(devices) > 1:
        raise CalibrationError(f"one file speaks for one device, but the tables name {', '.join(devices[:8])}")
    device = load_gpu(gpu or devices[0]) if any(row.held for row in rows) else None
    remarks = list(bad)
    if any(row.slowdown < 1 for row in rows):
        remarks.append("products that ran faster beside other work count as not slowed: noise of the measurement")
    slowdown: dict[str, dict[str, float]] = {}
    errors: list[float] = []
    lost = None
    for kind in _KINDS:
        mine = [row for row in rows if row.kind == kind]
        if mine:
            slowdown[kind], share, far = _fit(mine, device)
            errors += far
            lost = share if kind == "gemm" else lost
    for kind in _KINDS:
        slowdown.setdefault(kind, next(iter(slowdown.values())))
    if device is None:
        remarks.append(
            "no multiprocessors were held: collectives count as copies of memory, as they are on a processor"
        )
    source = f"fitted by dtsim calibrate overlap on {datetime.date.today().isoformat()}; sha256 of {digests(paths)}"
    apart = np.abs(np.expm1(errors))
    found = Interference(
        name=name,
        slowdown=slowdown,
        measured=(gpu or devices[0],),
        points=len(rows),
        residual_p50=round(float(np.quantile(apart, 0.5)), 4),
        residual_p95=round(float(np.quantile(apart, 0.95)), 4),
        sources={"*": source},
    )
    return OverlapFit(interference=found, lost=lost, remarks=tuple(remarks))


def _fit(rows: Sequence[OverlapMeasurement], device: Gpu | None) -> tuple[dict[str, float], float | None, list[float]]:
    """Return the slowdowns of one activity, the share lost per held multiprocessor, and log(fitted / measured)."""
    copies = [max(1.0, row.slowdown) for row in rows if row.held is None]
    out: dict[str, float] = {}
    errors: list[float] = []
    if copies:
        out["copy"] = round(float(np.exp(np.mean(np.log(copies)))), 4)
        errors += [math.log(out["copy"] / row.slowdown) for row in rows if row.held is None]
    held = [row for row in rows if row.held]
    if not held or device is None:
        collective = out["copy"]
        return out | {"tp": collective, "dp": collective}, None, errors
    units = device.streaming_multiprocessors or 0
    too_many = [row.held for row in held if (row.held or 0) >= units]
    if not units or too_many:
        raise CalibrationError(
            f"{device.name} has {units or 'an unknown number of'} multiprocessors, but the table holds {too_many or held[0].held}"
        )
    share = _lost(held, units)
    errors += [math.log(_law(share, row.held or 0, units) / row.slowdown) for row in held]
    generation = load_cost_table().generation.get(device.architecture, "")
    inside = 2 * load_cost_table().channels.get(generation, _CARDS)
    for name, count in (("tp", inside), ("dp", 2 * _CARDS), ("pp", _MESSAGES)):
        out[name] = round(_law(share, count, units), 4)
    return out, round(share, 4), errors


def _law(share: float, held: int, units: int) -> float:
    return 1.0 / (1.0 - share * held / units)


def _lost(rows: Sequence[OverlapMeasurement], units: int) -> float:
    """Return the share that agrees best with log slowdowns, from 0 (nothing lost) to what leaves a tenth of the GPU."""
    from scipy.optimize import minimize_scalar

    most = 0.9 * units / max(row.held or 0 for row in rows)

    def misses(share: float) -> float:
        return sum(
            (math.log(_law(share, row.held or 0, units)) - math.log(max(1.0, row.slowdown))) ** 2 for row in rows
        )

    return float(minimize_scalar(misses, bounds=(0.0, most), method="bounded").x)
