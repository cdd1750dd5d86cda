"""Scores of predictions against measurements (design 5b N).

error = predicted / measured - 1          bias = median error of what was predicted
a row that could have been placed and was not counts as an error of 100 %
a sweep = same source, GPU, model, number of GPUs and sequence length, at least 8 rows, max / min >= 1.2
spearman = mean over sweeps of the rank correlation of predicted and measured
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.run_residuals import Unknown
from simulator.program.program import CATEGORIES
from simulator.report.bands import BandScores, judge_bands
from simulator.report.columns import account_column, category_column

__all__ = ["OUT_OF_MEMORY", "Outcome", "Scores", "band_scores", "score", "scores_by_group", "spearman"]

OUT_OF_MEMORY = "out_of_memory"
"""The quantity of a verdict: 1 = runs out of memory, 0 = fits.  It enters the table of verdicts, no mean error."""
UNPREDICTED_ERROR = 1.0
"""Absolute error that a row counts with when its inputs are given and it is not predicted [1]."""
LEAST_ROWS_OF_A_SWEEP = 8
LEAST_SPREAD_OF_A_SWEEP = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One measured quantity and what was predicted for it.

    Args:
        case_id: the row, as its table names it.
        quantity: step_time_s, peak_memory_bytes, out_of_memory, time_us, tflops, makespan, ...
        group: the source, or the log.
        measured: in the unit that the quantity's name says; None where the table has none.
        predicted: None if not predicted.
        low, high: the 80 % band, where the prediction has one.
        reason: why it was not predicted; "" else.
        counts: whether it belongs to the scores (a row whose inputs are incomplete does not).
        assumed: what was filled in to place the row, in words.
        rank: of a list with one value per rank; None else.
        sweep: rows with equal text vary only in their plan.
        kind: of the run (`run_kind`), "" else; `unknown`: what of its code, plan and machine its row does not tell.
        priced: log spread of a step time that its prices explain.
        code, gpu: framework profile and machine (`Cluster.machine`) that it was predicted with.
        first: whether it was predicted before anybody had looked at its source's errors, as a table of kept predictions says.
        band_of: for what the band was made, where that differs between rows; "" else.
        terms: seconds by account, where a step was simulated; of a peak of memory the bytes by category.
    """

    case_id: str
    quantity: str
    group: str
    measured: float | None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    counts: bool = True
    assumed: tuple[str, ...] = ()
    rank: int | None = None
    sweep: str = ""
    kind: str = ""
    unknown: tuple[Unknown, ...] = ()
    priced: float = 0.0
    code: str = ""
    gpu: str = ""
    first: bool = False
    band_of: str = ""
    terms: tuple[tuple[str, float], ...] = ()

    @property
    def error(self) -> float | None:
        """predicted / measured - 1; None if either is missing or it is a verdict.  Of a measured 0: 0 or 1.

        >>> Outcome(case_id="a", quantity="step_time_s", group="g", measured=2.0, predicted=3.0).error
        0.5
        """
        if self.measured is None or self.predicted is None or self.quantity == OUT_OF_MEMORY:
            return None
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else 1.0
        return self.predicted / self.measured - 1.0

    def record(self) -> dict[str, Any]:
        """Return the row of a table: seconds or bytes of its terms beside it."""
        banded = self.measured is not None and self.low is not None and self.high is not None
        return {
            "case_id": self.case_id,
            "quantity": self.quantity,
            "group": self.group,
            "rank": self.rank,
            "measured": self.measured,
            "predicted": self.predicted,
            "low": self.low,
            "high": self.high,
            "error_pct": None if self.error is None else 100.0 * self.error,
            "reason": self.reason,
            "counts": self.counts,
            "assumed": "; ".join(self.assumed),
            "kind": self.kind,
            "unknown": "; ".join(self.unknown),
            "priced": self.priced,
            "code": self.code,
            "gpu": self.gpu,
            "in_band": self.low <= self.measured <= self.high if banded else None,  # type: ignore[operator]
            **{(category_column if name in CATEGORIES else account_column)(name): value for name, value in self.terms},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON row of `dtsim validate`."""
        error = self.error
        return {
            "case_id": self.case_id,
            "quantity": self.quantity,
            "group": self.group,
            "measured": self.measured,
            "predicted": self.predicted,
            "low": self.low,
            "high": self.high,
            "error_pct": None if error is None else 100.0 * error,
            "reason": self.reason or None,
            "counts": self.counts,
            "rank": self.rank,
            "assumed": list(self.assumed),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of some rows; errors as fractions, None where no row says anything.

    Args:
        n: rows that count.
        n_predicted: of these, predicted.
        mape, median_ape, p90_ape, max_ape: of absolute errors, unpredicted rows as 100 %.
        bias: median of the signed errors of predicted rows.
        spearman: mean over sweeps; `sweeps` of them.
        band_coverage: share of predicted rows with a band whose measurement lies in it.
        band_width: median of high / low.
        median_over_groups: median over groups of their median absolute error.
        out_of_memory: tp, fp, fn, tn of the verdicts, with precision and recall.
        in_sample: whether a row of these was used in a fit.
    """

    n: int
    n_predicted: int
    mape: float | None
    median_ape: float | None
    p90_ape: float | None
    max_ape: float | None
    bias: float | None
    spearman: float | None
    sweeps: int
    band_coverage: float | None
    band_width: float | None
    median_over_groups: float | None
    out_of_memory: dict[str, float | int | None]
    in_sample: bool

    def record(self) -> dict[str, Any]:
        """Return the row of a table; errors as fractions."""
        return {
            "rows": self.n,
            "rows_predicted": self.n_predicted,
            "median_error": self.median_ape,
            "mean_error": self.mape,
            "bias": self.bias,
            "p90_error": self.p90_ape,
            "max_error": self.max_ape,
            "rank_correlation": self.spearman,
            "band_coverage": self.band_coverage,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; errors in percent."""

        def percent(value: float | None) -> float | None:
            return None if value is None else 100.0 * value

        return {
            "n": self.n,
            "n_predicted": self.n_predicted,
            "mape": percent(self.mape),
            "median_ape": percent(self.median_ape),
            "p90_ape": percent(self.p90_ape),
            "max_ape": percent(self.max_ape),
            "bias": percent(self.bias),
            "spearman": self.spearman,
            "sweeps": self.sweeps,
            "band_coverage": self.band_coverage,
            "band_width": self.band_width,
            "median_over_groups": percent(self.median_over_groups),
            "out_of_memory": self.out_of_memory,
            "in_sample": self.in_sample,
        }


def score(outcomes: Iterable[Outcome], in_sample: bool = False) -> Scores:
    """Return the scores of some rows; those that do not count are passed over.

    >>> rows = [Outcome(case_id="a", quantity="step_time_s", group="g", measured=10.0, predicted=p) for p in (11.0, None)]
    >>> round(score(rows).mape, 6), round(score(rows).bias, 6)
    (0.55, 0.1)
    """
    counted = [o for o in outcomes if o.counts]
    numbers = [o for o in counted if o.quantity != OUT_OF_MEMORY and o.measured is not None]
    absolute = _absolute(numbers)
    signed = [o.error for o in numbers if o.error is not None]
    banded = [o for o in numbers if o.error is not None and o.low is not None and o.high is not None]
    inside = [o.low <= o.measured <= o.high for o in banded]  # type: ignore[operator]
    widths = [o.high / o.low for o in banded if o.low]  # type: ignore[operator]
    groups = [_absolute([o for o in numbers if o.group == group]) for group in dict.fromkeys(o.group for o in numbers)]
    mean_rank, sweeps = spearman(numbers)
    return Scores(
        n=len(numbers),
        n_predicted=len(signed),
        mape=_of(np.mean, absolute),
        median_ape=_of(np.median, absolute),
        p90_ape=_of(lambda a: np.quantile(a, 0.9), absolute),
        max_ape=_of(np.max, absolute),
        bias=_of(np.median, signed),
        spearman=mean_rank,
        sweeps=sweeps,
        band_coverage=_of(np.mean, inside),
        band_width=_of(np.median, widths),
        median_over_groups=_of(np.median, [float(np.median(g)) for g in groups]),
        out_of_memory=_verdicts(counted),
        in_sample=in_sample,
    )


def scores_by_group(outcomes: Sequence[Outcome], in_sample: frozenset[str] = frozenset()) -> dict[str, Scores]:
    """Return the scores of each group, in order of first appearance; `in_sample` names groups that were used in a fit."""
    groups = dict.fromkeys(o.group for o in outcomes)
    return {group: score((o for o in outcomes if o.group == group), group in in_sample) for group in groups}


def band_scores(outcomes: Iterable[Outcome]) -> list[BandScores]:
    """Return the scores of the bands by what they were made for; none where no row says it."""
    found: dict[str, dict[str, list[tuple[bool, float]]]] = {}
    for o in outcomes:
        if o.counts and o.band_of and o.measured is not None and o.low and o.high:
            row = (o.low <= o.measured <= o.high, o.high / o.low)
            found.setdefault(o.band_of, {}).setdefault(o.group, []).append(row)
    return [judge_bands(name, list(groups.values())) for name, groups in found.items()]


def spearman(outcomes: Iterable[Outcome]) -> tuple[float | None, int]:
    """Return (mean rank correlation over sweeps, number of sweeps)."""
    sweeps: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for o in outcomes:
        if o.sweep and o.measured is not None and o.predicted is not None:
            sweeps.setdefault((o.sweep, o.quantity), []).append((o.measured, o.predicted))
    values = []
    for pairs in sweeps.values():
        measured, predicted = np.array(pairs).T
        if len(pairs) >= LEAST_ROWS_OF_A_SWEEP and measured.max() >= LEAST_SPREAD_OF_A_SWEEP * measured.min():
            values.append(_rank_correlation(measured, predicted))
    return (float(np.mean(values)) if values else None), len(values)


def _absolute(outcomes: Sequence[Outcome]) -> list[float]:
    return [UNPREDICTED_ERROR if o.error is None else abs(o.error) for o in outcomes]


def _of(function: Callable[[NDArray[np.float64]], np.floating], values: Sequence[float]) -> float | None:
    return float(function(np.array(values, float))) if len(values) else None


def _rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    ranks = np.stack([_ranks(a), _ranks(b)])
    if any(ranks.std(axis=1) == 0):
        return 0.0
    return float(np.atleast_2d(np.corrcoef(ranks))[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle: NDArray[np.float64] = (last - counts + last - 1) / 2.0
    return middle[place]


def _verdicts(outcomes: Sequence[Outcome]) -> dict[str, float | int | None]:
    said = [
        (bool(o.measured), bool(o.predicted))
        for o in outcomes
        if o.quantity == OUT_OF_MEMORY and o.predicted is not None
    ]
    tp, fp = said.count((True, True)), said.count((False, True))
    fn, tn = said.count((True, False)), said.count((False, False))
    return {
        "tp": tp,
        "fp": fp,
        "fn": fn,
        "tn": tn,
        "precision": tp / (tp + fp) if tp + fp else None,
        "recall": tp / (tp + fn) if tp + fn else None,
    }
