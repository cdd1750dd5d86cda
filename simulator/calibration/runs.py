"""Whole runs -> how far predictions were from them, by kind of run: the last term of every band (design 5b O).

    sigma = 1.4826 x median |log(measured / predicted)|, every source weighing the same

No price is fitted here: a run only widens or narrows the band of predictions of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.errors import CalibrationError
from simulator.hardware.run_residuals import KindResidual

__all__ = ["ANY", "RunError", "export_run_residuals", "fit_run_residuals"]

ANY = "any"
"""The kind that stands for runs of no kind of their own."""
FEWEST_RUNS = 8
FEWEST_SOURCES = 3
"""A kind with fewer runs or sources than these shares the residuals of all runs: one source is no spread."""
SMALLEST_SIGMA = 0.01
_NORMAL = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """One measured run and its prediction, both in seconds; `kind` from `run_kind`."""

    kind: str
    source: str
    measured: float
    predicted: float


def fit_run_residuals(runs: Iterable[RunError]) -> dict[str, KindResidual]:
    """Return the residuals of each kind that has runs enough, and of all runs together ("any").

    Raises:
        CalibrationError: no runs.

    >>> run = RunError(kind="tensor", source="a", measured=1.0, predicted=1.1)
    >>> round(fit_run_residuals([run])["any"].sigma, 3)
    0.141
    """
    everything = list(runs)
    if not everything:
        raise CalibrationError(
            "residuals of whole runs need at least one run that was measured and predicted, got none"
        )
    kinds = {ANY: everything}
    for kind in sorted({run.kind for run in everything}):
        own = [run for run in everything if run.kind == kind]
        if len(own) >= FEWEST_RUNS and len({run.source for run in own}) >= FEWEST_SOURCES:
            kinds[kind] = own
    return {kind: _residual(own) for kind, own in kinds.items()}


def _residual(runs: list[RunError]) -> KindResidual:
    log = np.array([abs(math.log(run.measured / run.predicted)) for run in runs])
    error = np.array([abs(run.predicted / run.measured - 1.0) for run in runs])
    count: dict[str, int] = {}
    for run in runs:
        count[run.source] = count.get(run.source, 0) + 1
    weight = np.array([1.0 / count[run.source] for run in runs])
    return KindResidual(
        sigma=max(SMALLEST_SIGMA, round(_NORMAL * _weighted_median(log, weight), 4)),
        median=round(_weighted_median(error, weight), 4),
        runs=len(runs),
        sources=len(count),
    )


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])


def export_run_residuals(residuals: Mapping[str, KindResidual], sources: Iterable[str], path: Path) -> None:
    """Write residuals as the data file `calibrations/run_residuals.toml`.

    Args:
        sources: names of the tables that the runs were published in.
    """
    lines = [
        "# Written by simulator.calibration.runs; do not edit.  How far whole predictions were from measured runs.",
        'name = "run_residuals"',
    ]
    for kind, residual in residuals.items():
        lines += ["", f"[kind.{kind}]"]
        lines += [f"{key} = {value}" for key, value in residual.model_dump().items()]
    listed = "; ".join(sorted(sources)).replace("\\", "/").replace('"', "'")
    text = f"measured and predicted step times of the runs published in: {listed}"
    lines += ["", "[sources]", f'"*" = "{text}"', ""]
    path.write_text("\n".join(lines), encoding="utf-8")
