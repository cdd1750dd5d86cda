"""Measured peaks of memory -> how wrong each part of a predicted peak is: the widths of memory's bands (design 5b O).

    log(measured / predicted)^2 = sum over parts of share^2 x sigma_part^2      least squares, sigma_part^2 >= 0,

every source weighing the same and no error counting for more than the largest of nine tenths of the peaks; then all sigmas are
stretched alike, so that four fifths of the peaks lie in their bands.  What codes add that no measured run stands behind (`unseen`) is the
least spread beside that of the parts with which four fifths of their peaks do.  No byte is fitted: a peak only widens or narrows bands.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.calibration.runs.residual_file import write_residuals
from simulator.errors import CalibrationError
from simulator.hardware.memory_residuals import PARTS, MemoryResiduals, PartResidual, part_shares
from simulator.report.prediction import QUANTILE

__all__ = ["PeakError", "export_memory_residuals", "fit_memory_residuals"]

SMALLEST_SIGMA = 0.01
COVERAGE = 0.8
LARGEST = 0.9
NOTED = 0.1
"""A peak counts among a part's runs where the part is at least this share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakError:
    """One measured peak and its prediction [B], which is the sum of `by_category`; `unseen`: of a code that nobody looked up."""

    source: str
    measured: float
    by_category: Mapping[str, float]
    unseen: bool = False

    @property
    def predicted(self) -> float:
        """The predicted peak [B]."""
        return sum(self.by_category.values())


def fit_memory_residuals(peaks: Iterable[PeakError]) -> MemoryResiduals:
    """Return the residual of every part, and what codes add that nobody looked up.

    Raises:
        CalibrationError: no peaks.

    >>> peak = PeakError(source="a", measured=1.0, by_category={"weights": 1.1})
    >>> round(fit_memory_residuals([peak]).part["states"].sigma, 4)  # 0.0953 lies at the edge of the band
    0.0744
    """
    everything = [peak for peak in peaks if peak.predicted > 0 and peak.measured > 0]
    if not everything:
        raise CalibrationError("residuals of memory need at least one peak that was measured and predicted, got none")
    known = [peak for peak in everything if not peak.unseen] or everything
    found = MemoryResiduals(name="memory_residuals", part=_parts(known))
    others = [peak for peak in everything if peak.unseen] if known is not everything else []
    return found.model_copy(update={"unseen": _unseen(others, found)}) if others else found


def _unseen(peaks: list[PeakError], known: MemoryResiduals) -> float:
    """The least log spread beside that of the parts with which four fifths of these peaks lie in their bands."""
    error = np.array([abs(math.log(peak.measured / peak.predicted)) for peak in peaks])
    parts = np.array([known.sigma(peak.by_category) for peak in peaks])
    needed = np.sqrt(np.maximum((error / QUANTILE) ** 2 - parts**2, 0.0))
    return round(_quantile(needed, _weights(peaks), COVERAGE), 4)


def _weights(peaks: list[PeakError]) -> np.ndarray:
    """[peaks] weights: every source counts the same."""
    count = Counter(peak.source for peak in peaks)
    return np.array([1.0 / count[peak.source] for peak in peaks])


def _parts(everything: list[PeakError]) -> dict[str, PartResidual]:
    from scipy.optimize import nnls

    shares = np.array([list(part_shares(peak.by_category).values()) for peak in everything])
    error = np.array([abs(math.log(peak.measured / peak.predicted)) for peak in everything])
    weight = _weights(everything)
    limited = np.minimum(error, _quantile(error, weight, LARGEST))
    root = np.sqrt(weight)
    squares, _ = nnls(shares**2 * root[:, np.newaxis], limited**2 * root)
    sigma = np.maximum(np.sqrt(squares), SMALLEST_SIGMA)
    wide = np.sqrt((shares * sigma) ** 2 @ np.ones(len(sigma)))
    stretch = _quantile(error / wide, weight, COVERAGE) / QUANTILE
    out = {}
    for i, part in enumerate(PARTS):
        own = [peak.source for peak, share in zip(everything, shares[:, i], strict=True) if share >= NOTED]
        width = max(SMALLEST_SIGMA, round(float(sigma[i]) * stretch, 4))
        out[part] = PartResidual(sigma=width, runs=len(own), sources=len(set(own)))
    return out


def _quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    """The smallest value below or at which `share` of the weight lies."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weight[order])
    place = min(int(np.searchsorted(cumulative, share * cumulative[-1] * (1.0 - 2.0**-40))), len(values) - 1)
    return float(values[order][place])


def export_memory_residuals(residuals: MemoryResiduals, sources: Iterable[str], path: Path) -> None:
    """Write residuals as the data file `calibrations/memory_residuals.toml`.

    Args:
        sources: names of the tables that the peaks were published in.
    """
    write_residuals(residuals, "peaks of memory", "predicted peaks of memory were from measured ones", sources, path)
